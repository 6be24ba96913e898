"""Every key of the store, once.

What belongs here: names and order of keys, and reading them back. Nothing else spells a key.

    /changeover/{fleet}/
        schema                                            codec version of the log
        head                                              position of the last entry
        log/{position:020d}                               entries, in the order of the log
        leader                                            who leads; lease-bound
        inbox/{writer}/{incarnation:010d}/{counter:010d}  facts that wait to be sequenced
        counters/{writer}                                 the last fact that a node stated
        acts/{writer}/{incarnation:010d}                  an act was stated; lease-bound
        incarnations/{node}                               last incarnation given out
        nodes/{node}/{incarnation:010d}                   it is alive; lease-bound
        fenced/{node}/{incarnation:010d}                  it was declared lost
        vitals/{node}/{incarnation:010d}                  what it measured last; lease-bound
        desired/{job}                                     the topology a job should have
        orders/{node}                                     what one node shall do beside it
        snapshot/{position:020d}                          the folded state there: its manifest
        snapshot/{position:020d}/{chunk:06d}              a part of it
        archived                                          up to where the log is in archives only

A live key carries its incarnation in its name, so that deleting a name can never hit a newer one.
`counters` and `acts` make a fact whose acknowledgement was lost safe to state again: the fact
itself may already have left the inbox for the log.
"""

from __future__ import annotations

from typing import Final

from controlplane.eventlog.store import prefix_end
from statemachine.ids import Incarnation, JobId, NodeId, Position, check_name

_ROOT: Final = "/changeover/"
_POSITION_DIGITS: Final = 20


class Keys:
    """The keys of one fleet."""

    def __init__(self, fleet: str) -> None:
        """Check the fleet's name.

        Raises BadName.
        """
        self.fleet = check_name("fleet", fleet)
        self._root = f"{_ROOT}{fleet}/"
        self.everything = self._prefix("")
        self.schema = self._key("schema")
        self.head = self._key("head")
        self.leader = self._key("leader")
        self.archived = self._key("archived")
        self.snapshots_all = self._prefix("snapshot/")
        self.log_all = self._prefix("log/")
        self.inbox_all = self._prefix("inbox/")
        self.nodes_all = self._prefix("nodes/")
        self.vitals_all = self._prefix("vitals/")
        self.desired_all = self._prefix("desired/")
        self.orders_all = self._prefix("orders/")
        self.counters_all = self._prefix("counters/")
        self.acts_all = self._prefix("acts/")
        self.incarnations_all = self._prefix("incarnations/")
        self.fenced_anybody = self._prefix("fenced/")

    def _key(self, name: str) -> bytes:
        return f"{self._root}{name}".encode("ascii")

    def _prefix(self, name: str) -> tuple[bytes, bytes]:
        start = self._key(name)
        return start, prefix_end(start)

    def log(self, position: int) -> bytes:
        """Key of one entry of the log."""
        return self._key(f"log/{position:020d}")

    def snapshot(self, position: int) -> bytes:
        """Key of the manifest of one snapshot; its chunks sort right behind it."""
        return self._key(f"snapshot/{position:020d}")

    def snapshot_chunk(self, position: int, chunk: int) -> bytes:
        """Key of one part of a snapshot."""
        return self._key(f"snapshot/{position:020d}/{chunk:06d}")

    def inbox(self, writer: str, incarnation: int, counter: int) -> bytes:
        """Key of one fact that waits."""
        return self._key(f"inbox/{writer}/{incarnation:010d}/{counter:010d}")

    def inbox_of(self, writer: str) -> tuple[bytes, bytes]:
        """Range of all facts of one writer that wait."""
        return self._prefix(f"inbox/{writer}/")

    def inbox_beginning(self, prefix: str) -> tuple[bytes, bytes]:
        """Range of all facts that wait of writers whose names begin so."""
        return self._prefix(f"inbox/{prefix}")

    def acts_beginning(self, prefix: str) -> tuple[bytes, bytes]:
        """Range of all marks of acts of writers whose names begin so."""
        return self._prefix(f"acts/{prefix}")

    def counter(self, writer: str) -> bytes:
        """Key of the last fact that a node stated."""
        return self._key(f"counters/{writer}")

    def act(self, writer: str, incarnation: int) -> bytes:
        """Key that marks one operator's act as stated."""
        return self._key(f"acts/{writer}/{incarnation:010d}")

    def incarnations(self, node: NodeId) -> bytes:
        """Key of the last incarnation given out for a node."""
        return self._key(f"incarnations/{node}")

    def node(self, node: NodeId, incarnation: Incarnation) -> bytes:
        """Key that lives as long as an incarnation does."""
        return self._key(f"nodes/{node}/{incarnation:010d}")

    def node_all(self, node: NodeId) -> tuple[bytes, bytes]:
        """Range of all live incarnations of one node: at most one."""
        return self._prefix(f"nodes/{node}/")

    def fenced(self, node: NodeId, incarnation: Incarnation) -> bytes:
        """Key that says an incarnation was declared lost."""
        return self._key(f"fenced/{node}/{incarnation:010d}")

    def fenced_all(self, node: NodeId) -> tuple[bytes, bytes]:
        """Range of all incarnations of one node that were declared lost."""
        return self._prefix(f"fenced/{node}/")

    def vitals(self, node: NodeId, incarnation: Incarnation) -> bytes:
        """Key of what an incarnation measured last."""
        return self._key(f"vitals/{node}/{incarnation:010d}")

    def vitals_of(self, node: NodeId) -> tuple[bytes, bytes]:
        """Range of what all incarnations of one node measured last."""
        return self._prefix(f"vitals/{node}/")

    def desired(self, job: JobId) -> bytes:
        """Key of the topology that a job should have."""
        return self._key(f"desired/{job}")

    def orders(self, node: NodeId) -> bytes:
        """Key of what one node shall do beside, or instead of, holding a slot."""
        return self._key(f"orders/{node}")

    def parts(self, key: bytes) -> tuple[str, ...]:
        """Split a key of this fleet, or what somebody else put there, behind the root."""
        return tuple(key.decode("ascii", "replace").removeprefix(self._root).split("/"))

    def position(self, key: bytes) -> Position | None:
        """Read the position from the key of an entry; None of a key that names none."""
        digits = key[len(self.log_all[0]) :]
        if not digits.isdigit() or len(digits) != _POSITION_DIGITS:
            return None
        return Position(int(digits))
