"""Communicators that keep their links when their members change.

Empty on purpose: the port and the links load without torch, so nothing is re-exported here.
"""
