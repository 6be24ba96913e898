"""Reading a log after the fact: a file is enough, no store is asked and nothing is changed.

Reading order: `logfile` (from bytes to entries, and what is wrong with them), `moments` (what a
person means by a time), `index` (so that a question about one moment of a long log is quick),
`stretches` (who was in which state from when to when), `report` and `trace` (pages and tracks).
Where the time went is `statemachine.accounting`, what differs `statemachine.difference`.
"""
