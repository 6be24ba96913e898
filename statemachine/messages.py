"""What an agent and its training process say to each other, over a local socket.

What belongs here: shapes, and their bytes. The rules of when to say what are `participant` (the
agent's half) and `worker.loop` (the training process's half).
"""

from typing import Final

import msgspec
from msgspec import Struct, field

from statemachine.errors import EventCorrupt
from statemachine.events import Handover, JobDeclared, Motive, Report
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot, TransitionId
from statemachine.topology import Holder, Patience, WarmupCaps
from statemachine.vitals import Vitals


class Message(Struct, frozen=True, kw_only=True, tag_field="say", omit_defaults=True):
    """Root of everything said over the local socket."""


# --- agent -> training process ----------------------------------------------------------------


class Hello(Message, frozen=True, tag=True):
    """First word of the agent: who this node is, and the job it serves."""

    node: NodeId
    incarnation: Incarnation
    declared: JobDeclared
    secret_path: str
    host: str = "127.0.0.1"
    """Address at which peers reach this node: links, state and questions are served there."""
    patience: Patience = Patience()
    recordings: str = ""
    """Folder for recordings of the job's groups; empty: nothing is recorded."""


class Rehearse(Message, frozen=True, tag=True):
    """Rehearse a role in the sandbox, with what was recorded, which these nodes have."""

    job: JobId
    role: Role
    recording: str = ""
    recording_from: tuple[Holder, ...] = ()
    caps: WarmupCaps = WarmupCaps()


class Prepare(Message, frozen=True, tag=True):
    """Phase one: build the links that the members of `epoch` need and this node lacks.

    In an unplanned transition every group with a member that is not among `members` any more is
    abandoned at once, and the answer waits until the training process is parked. `slot` is -1
    for a leaver; `idle` are slots that nobody shall hold: groups are built without them. Where it
    `asks_saves`, the answer says what this process could load.
    """

    transition: TransitionId
    motive: Motive
    epoch: Epoch
    slot: Slot
    members: tuple[Holder, ...]
    leavers: tuple[Holder, ...]
    deadline_at_ms: int
    idle: tuple[Slot, ...] = ()
    asks_saves: bool = False


class Commit(Message, frozen=True, tag=True):
    """Phase two: switch at the boundary of the vote (planned), or now (parked).

    `resume_step` is the next step to run, -1 when the vote decides; `apply` says that this node
    holds the gradients of the step before it and applies them first; `receive` names where its
    state comes from, `send` to whom it is given. Where it `loads`, that state is what was saved of
    the step before.
    """

    transition: TransitionId
    motive: Motive
    epoch: Epoch
    resume_step: int
    apply: bool = False
    receive: Handover | None = None
    sources: tuple[Holder, ...] = ()
    send: tuple[Holder, ...] = ()
    leave: bool = False
    loads: bool = False


class Cancel(Message, frozen=True, tag=True):
    """A transition was given up before its commit: forget its links."""

    transition: TransitionId


class Release(Message, frozen=True, tag=True):
    """This node holds no slot any more: wait for orders."""


class StopRequested(Message, frozen=True, tag=True):
    """The job shall end: say so in every vote, and stop after the step in which all say it."""


class Stop(Message, frozen=True, tag=True):
    """The job is over: close the links with a goodbye and return to the user's code."""

    reason: str


# --- training process -> agent ----------------------------------------------------------------


class Ready(Message, frozen=True, tag=True):
    """The user's code reached its step loop."""

    pid: int
    host: str
    port: int
    transfer_port: int
    digest: str
    state_bytes: int
    records: bool = False
    phases_ms: dict[str, float] = field(default_factory=dict)


class Recorded(Message, frozen=True, tag=True):
    """One step's answers of the cross-machine groups were recorded, or why they could not be."""

    job: JobId
    role: Role
    recording: str = ""
    digest: str = ""
    step: int = 0
    nbytes: int = 0
    tensors: int = 0
    took_ms: float = 0.0
    failure: str = ""


class Saved(Message, frozen=True, tag=True):
    """A checkpoint of this process's shard was written beside the run, or why it was not."""

    step: int
    nbytes: int = 0
    copy_ms: float = 0.0
    write_ms: float = 0.0
    failure: str = ""


class Rehearsed(Message, frozen=True, tag=True):
    """A role was rehearsed, or why it could not be."""

    job: JobId
    role: Role
    digest: str = ""
    first_step_ms: float = 0.0
    steady_step_ms: float = 0.0
    took_ms: float = 0.0
    failure: str = ""
    recording: str = ""
    allocate_bytes: int = 0


class PeerGone(Message, frozen=True, tag=True):
    """A link ended without a goodbye."""

    peer: NodeId
    peer_incarnation: Incarnation
    group: str
    epoch: Epoch
    step: int


class PeerSilent(Message, frozen=True, tag=True):
    """A step is overdue and a peer does not say that its process runs; zero: it does again."""

    peer: NodeId
    peer_incarnation: Incarnation
    epoch: Epoch
    waited_ms: float
    silent_ms: float


class Broken(Message, frozen=True, tag=True):
    """Parked in the vote of a broken group for a while, and told of no transition."""

    epoch: Epoch
    cause: str


class Parked(Message, frozen=True, tag=True):
    """Heard of an unplanned transition, and out of every collective: the abort did not hang.

    Said before `Prepared`, which may take longer (links wait for the peers at their other ends), or
    after it, where the training thread was in the middle of a step that is thrown away.
    """

    transition: TransitionId


class Prepared(Message, frozen=True, tag=True):
    """Every link is there; if the transition is unplanned, this process stands as reported.

    It is parked there; or, `computing`, its training thread is still in the step after that, whose
    vote it has not cast and will not let pass: `Parked` follows.
    """

    transition: TransitionId
    links_opened: int
    took_ms: float
    report: Report | None = None
    quiesce_ms: float = 0.0
    computing: bool = False


class Refused(Message, frozen=True, tag=True):
    """The links cannot be built."""

    transition: TransitionId
    reason: str
    blames: NodeId = NodeId("")


class Applied(Message, frozen=True, tag=True):
    """This process trains inside the groups of `epoch`, going on in its step if it keeps it."""

    transition: TransitionId
    epoch: Epoch
    step: int
    peers: tuple[str, ...] = ()
    phases_ms: dict[str, float] = field(default_factory=dict)
    bytes_received: int = 0
    keeps_step: bool = False


class Resumed(Message, frozen=True, tag=True):
    """The first step of a new epoch was committed."""

    transition: TransitionId
    step: int
    step_ms: float
    committed_at_ms: float
    previous_at_ms: float = 0.0


class Window(Message, frozen=True, tag=True):
    """Vitals of one window."""

    vitals: Vitals


class Finished(Message, frozen=True, tag=True):
    """The job's last step was committed here."""

    step: int
    weights_digest: str = ""
    loss: float | None = None


ToWorker = Hello | Rehearse | Prepare | Commit | Cancel | Release | StopRequested | Stop
FromWorker = (
    Ready
    | Recorded
    | Rehearsed
    | Saved
    | PeerGone
    | PeerSilent
    | Broken
    | Parked
    | Prepared
    | Refused
    | Applied
    | Resumed
    | Window
    | Finished
)

_TO: Final = msgspec.msgpack.Decoder(ToWorker)
_FROM: Final = msgspec.msgpack.Decoder(FromWorker)
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode_message(message: ToWorker | FromWorker) -> bytes:
    """Encode one message, without its length."""
    return _ENCODER.encode(message)


def decode_to_worker(raw: bytes) -> ToWorker:
    """Decode what an agent said.

    Raises:
        EventCorrupt: no such message.
    """
    try:
        return _TO.decode(raw)
    except msgspec.MsgspecError as error:
        raise EventCorrupt(f"no message of an agent: {error}") from error


def decode_from_worker(raw: bytes) -> FromWorker:
    """Decode what a training process said.

    Raises:
        EventCorrupt: no such message.
    """
    try:
        return _FROM.decode(raw)
    except msgspec.MsgspecError as error:
        raise EventCorrupt(f"no message of a training process: {error}") from error
