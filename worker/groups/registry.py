"""Makes a managed group known to torch by name, for code that looks groups up.

What belongs here: the writes to torch's private registry, read in torch 2.13. What does not:
anything that `DistributedDataParallel` or `dist.all_reduce(t, group=g)` needs; those take the
object and need no registry.

Published groups also work in `DeviceMesh.from_group`, functional collectives, `DTensor`, `FSDP2`,
and wherever torch translates a global rank (`dist.broadcast(t, src=...)`). `dist.new_group` does
not work on top of them: torch would make a group that nobody looks after.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from worker.groups.managed import ManagedGroup

_registry: Any = distributed_c10d
_torch: Any = dist


def publish(group: ManagedGroup, ranks: Sequence[int], *, default: bool = False) -> str:
    """Register `group`, whose member i has global rank `ranks[i]`; returns its name in torch.

    `default` makes it the default group too: only then do `dist.get_rank()`, device meshes and
    `DTensor` work, so publish the group of all ranks that way, first. Calling again with
    other ranks, after a standby learnt its slot, replaces them.

    Raises:
        ValueError: as many ranks are needed as the group has members, and torch takes the index in
            the default group for the global rank.
    """
    if default and list(ranks) != list(range(group.size())):
        raise ValueError("the default group has the ranks from 0 on, in order")
    if len(ranks) != group.size():
        raise ValueError(f"{group.label} has {group.size()} members, not {len(ranks)}")
    world = _registry._world
    name = f"changeover.{group.label}"
    known = group in world.pg_map
    group.setGroupName(name)
    world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
    if not known:
        world.pg_map[group] = (group.getBackendName(), _torch.HashStore())
        world.pg_names[group] = name
        world.pg_backend_config[group] = f"cpu:{group.getBackendName()}"
        tag = f"ptd:{name}"
        world.pg_to_tag[group] = tag
        world.tags_to_pg.setdefault(tag, []).append(group)
        _registry._register_process_group(name, group)
    if default:
        _registry._update_default_pg(group)
    return name


def withdraw(group: ManagedGroup) -> None:
    """Undo `publish`; a group that was not published is left alone."""
    world = _registry._world
    if group not in world.pg_map:
        return
    name = world.pg_names.pop(group)
    tag = world.pg_to_tag.pop(group)
    world.tags_to_pg[tag].remove(group)
    for table in (world.pg_map, world.pg_group_ranks, world.pg_backend_config):
        del table[group]
    _registry._unregister_process_group(name)
    if world.default_pg is group:
        _registry._update_default_pg(None)
