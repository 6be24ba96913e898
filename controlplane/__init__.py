"""The etcd side. Empty on purpose: importing `controlplane.eventlog` must not drag the rest in."""
