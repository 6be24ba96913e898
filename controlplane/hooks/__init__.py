"""Telling others: webhooks and programs that hear of events, and a heartbeat whose silence speaks.

Reading order: `hook` (what one is, and its checks), `rendering` (what it says), `delivering` (one
try), `dispatch` (which events, how often, in which order), `heartbeat`.

Rules. Only the leading controller tells. A delivery is made at least once: each carries a key that
stays the same when it is made again, by a retry or by the next leader. No failure of a hook delays
or ends a term. What is secret comes from the environment or a file and is never written anywhere.
"""
