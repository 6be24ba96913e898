"""What a training process tells its agent, put into messages.

What belongs here: shapes with many fields, so that the loop reads as the story that it is.
"""

import os

from statemachine import messages as m
from statemachine.ids import Epoch, Incarnation, NodeId
from worker.seat import Seat
from worker.vigil import Silence


def ready(
    address: tuple[str, int],
    transfer_port: int,
    *,
    digest: str,
    state_bytes: int,
    records: bool,
    phases_ms: dict[str, float],
) -> m.Ready:
    """The user's code reached its step loop; `address` is where its links listen."""
    return m.Ready(
        pid=os.getpid(),
        host=address[0],
        port=address[1],
        transfer_port=transfer_port,
        digest=digest,
        state_bytes=state_bytes,
        records=records,
        phases_ms=phases_ms,
    )


def applied(
    order: m.Commit,
    step: int,
    phases_ms: dict[str, float],
    peers: tuple[str, ...] = (),
    bytes_received: int = 0,
    *,
    keeps_step: bool = False,
) -> m.Applied:
    """What an order asked for is done; `step` comes next."""
    return m.Applied(
        transition=order.transition,
        epoch=order.epoch,
        step=step,
        peers=peers,
        phases_ms=phases_ms,
        bytes_received=bytes_received,
        keeps_step=keeps_step,
    )


def peer_gone(seat: Seat | None, node: str, incarnation: int, kind: str) -> m.PeerGone:
    """A peer's process ended, as a group of this kind saw it."""
    return m.PeerGone(
        peer=NodeId(node),
        peer_incarnation=Incarnation(incarnation),
        group=seat.names.get(kind, kind) if seat is not None else kind,
        epoch=seat.epoch if seat is not None else Epoch(0),
        step=-1,
    )


def peer_silent(seat: Seat | None, found: Silence) -> m.PeerSilent:
    """A peer is waited for and silent, or answers again."""
    return m.PeerSilent(
        peer=NodeId(found.member.node),
        peer_incarnation=Incarnation(found.member.incarnation),
        epoch=seat.epoch if seat is not None else Epoch(0),
        waited_ms=found.waited_s * 1000,
        silent_ms=found.silent_s * 1000,
    )
