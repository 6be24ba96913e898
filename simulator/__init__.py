"""What would have happened: the state machine on virtual time.

This package may import `statemachine` and nothing else of ours: no etcd, no sockets, no torch. It
runs the rules that production runs and never reimplements one.
"""
