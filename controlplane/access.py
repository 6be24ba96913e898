"""Who may touch which keys of a fleet: etcd users and roles, one pair per kind of process. Pure.

What belongs here: the table of rights, as ranges of keys, and the same as commands for whoever
administers etcd. Bringing it about is `eventlog.etcd_auth`'s, certificates are `certificates`'.

Theory of operation. etcd takes the common name of a client's certificate for its user. A user has
one role of the same name, a role its ranges. Names begin with the fleet's: an etcd may serve
several. A right is given for a reason, which stands beside it; what is not in the table is refused
at the store, whoever's program it was.

    controller    decides: all keys of the fleet
    operator      reads all, states acts in the name of a person
    node          one node: its own life, facts and vitals; reads what is wanted of it
    worker        any node, for fleets whose nodes come and go: the same for all names but people's
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

from msgspec import Struct

from controlplane.errors import BadAccess
from controlplane.eventlog.keys import Keys
from controlplane.eventlog.log import OPERATOR_PREFIX
from statemachine.ids import NodeId, check_name

ROOT: Final = "root"
"""The user that etcd itself demands, with the role of that name: whoever administers it."""

COMMON_NAME_MAX: Final = 64
"""Characters that the common name of a certificate may have (X.509)."""


class Level(IntEnum):
    """How far a right goes; numbers are etcd's."""

    READ = 0
    READWRITE = 2


class Grant(Struct, frozen=True):
    """A right to one key, or to `[start, end)`, and what it is for."""

    start: bytes
    end: bytes
    level: Level
    why: str


class User(Struct, frozen=True):
    """A user, the role of the same name, and the files that its certificate is kept in."""

    name: str
    file: str
    grants: tuple[Grant, ...]


def users_of(fleet: str, nodes: Sequence[str] = ()) -> tuple[User, ...]:
    """The users of a fleet: controller, operator, and either its nodes or a worker for all.

    Raises:
        BadName: of the fleet or of a node.
        BadAccess: a name is too long for a certificate, or belongs to people.
    """
    keys = Keys(fleet)
    found = [
        User(f"{fleet}.controller", "controller", _controller(keys)),
        User(f"{fleet}.operator", "operator", _operator(keys)),
    ]
    for name in dict.fromkeys(nodes):
        node = NodeId(check_name("node", name))
        if name.startswith(OPERATOR_PREFIX):
            raise BadAccess(f"node name {name!r}: names that begin with 'operator.' are people's")
        found.append(User(f"{fleet}.node.{node}", f"node-{node}", _node(keys, node)))
    if not nodes:
        found.append(User(f"{fleet}.worker", "worker", _worker(keys)))
    for user in found:
        if len(user.name) > COMMON_NAME_MAX:
            raise BadAccess(
                f"user name {user.name!r} has {len(user.name)} characters, and a certificate has "
                f"room for {COMMON_NAME_MAX}: shorten the fleet's name or the node's"
            )
    return tuple(found)


def _controller(keys: Keys) -> tuple[Grant, ...]:
    return (Grant(*keys.everything, Level.READWRITE, "sequences, decides, fences, projects"),)


def _operator(keys: Keys) -> tuple[Grant, ...]:
    return (
        Grant(*keys.everything, Level.READ, "status, explain, log tail, export, verify"),
        Grant(*keys.inbox_beginning(OPERATOR_PREFIX), Level.READWRITE, "acts, in a person's name"),
        Grant(*keys.acts_beginning(OPERATOR_PREFIX), Level.READWRITE, "that an act stands once"),
    )


def _reading(keys: Keys) -> tuple[Grant, ...]:
    return (
        Grant(keys.schema, b"", Level.READ, "refuses a log of a newer release"),
        Grant(*keys.desired_all, Level.READ, "the topology that a job should have"),
        Grant(*keys.orders_all, Level.READ, "what a node shall do beside it"),
    )


def _node(keys: Keys, node: NodeId) -> tuple[Grant, ...]:
    write = Level.READWRITE
    return (
        *_reading(keys),
        Grant(keys.incarnations(node), b"", write, "its next incarnation"),
        Grant(*keys.node_all(node), write, "that it lives"),
        Grant(*keys.fenced_all(node), write, "that it was declared lost; a new life begins clean"),
        Grant(*keys.inbox_of(node), write, "its facts"),
        Grant(keys.counter(node), b"", write, "that a fact stands once"),
        Grant(*keys.vitals_of(node), write, "what it measured"),
    )


def _worker(keys: Keys) -> tuple[Grant, ...]:
    write = Level.READWRITE
    inbox, people = keys.inbox_all, keys.inbox_beginning(OPERATOR_PREFIX)
    return (
        *_reading(keys),
        Grant(*keys.incarnations_all, write, "the next incarnation"),
        Grant(*keys.nodes_all, write, "that a node lives"),
        Grant(*keys.fenced_anybody, write, "that it was declared lost; a new life begins clean"),
        Grant(inbox[0], people[0], write, "facts of nodes, before people's acts"),
        Grant(people[1], inbox[1], write, "facts of nodes, behind people's acts"),
        Grant(*keys.counters_all, write, "that a fact stands once"),
        Grant(*keys.vitals_all, write, "what nodes measured"),
    )


# --- as commands ----------------------------------------------------------------------------------


def commands_of(users: Iterable[User]) -> tuple[str, ...]:
    """What an administrator types to bring the same about, in order; each may be repeated.

    etcdctl is told where etcd is, and who asks, by its own ETCDCTL_* variables.
    """
    lines = [f"etcdctl user add {ROOT} --no-password", f"etcdctl user grant-role {ROOT} {ROOT}"]
    for user in users:
        lines.append(f"etcdctl role add {user.name}")
        for grant in user.grants:
            level = grant.level.name.lower()
            ends = " ".join(shlex.quote(key.decode("ascii")) for key in (grant.start, grant.end))
            span = ends.removesuffix(" ''")
            lines.append(f"etcdctl role grant-permission {user.name} {level} {span}  # {grant.why}")
        lines.append(f"etcdctl user add {user.name} --no-password")
        lines.append(f"etcdctl user grant-role {user.name} {user.name}")
    return (*lines, "etcdctl auth enable")
