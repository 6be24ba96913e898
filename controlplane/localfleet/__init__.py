"""A whole fleet on this machine: etcd, a controller and nodes, each a process of its own.

What belongs here: starting, hurting and ending processes on loopback, and where they write. What a
run is for (`controlplane.demo`) and what its log means (`statemachine`) do not.
"""
