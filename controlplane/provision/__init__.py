"""The scheduler beside us: tell it which machines to keep work away from, and ask for machines.

Reading order: `port` (four verbs), the adapters `commands`, `slurm`, `kubernetes`, `opening` (from
settings to one of them), `cordons` (which events make which calls).

Rules. *Unknown is not unhealthy*: a tool that is missing, wrong or silent is an error that is told,
and never a reason to drain anything. The scheduler follows our log; nothing here decides.
"""
