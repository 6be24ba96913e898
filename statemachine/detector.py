"""Windows of vitals in, verdicts out: a grey node is told from its peers, nobody else.

What belongs here: memory of rounds, how long a deviation must last, verdicts that stand, are
renewed, withdrawn or expire. How one round is compared: `comparison`. Sans I/O: the caller brings
the vitals, the time and the policy, and appends what comes back.

Theory of operation.
1. *Cohort*: nodes in the same role of the same job. A *round* of a cohort takes one window of
   each; it closes when all that were in the last round have reported, or when one reports twice.
   So windows that arrive together are compared, whatever the nodes' clocks say.
2. *Evidence*: a round says of each node by which ratio it worked longer than its peers, and
   whether the indicators agree (`accuses`). Unreadable windows are no evidence, for or against.
3. *Sustained*: a verdict needs that windows in a row accuse (one in four may fail to) and that
   their median ratio reaches its level and stands out of the noise of the last rounds. The less a
   node is slow, the longer it has to be.
4. *Hysteresis*: a verdict falls only when the median over more windows is near the peers again,
   or when it expires without renewal. A worse verdict replaces a milder one, never the reverse.
5. A slowdown of all shows as no ratio at all: it is noted, and flags nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import log, sqrt
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rpds import HashTrieMap, HashTrieSet

from statemachine.comparison import Comparison, ComparisonPolicy, Evidence, compare
from statemachine.errors import BadPolicy
from statemachine.events import Indicator, Verdict, VerdictIssued, VerdictWithdrawn
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role
from statemachine.vitals import Vitals, median

VERSION: Final = "peers-1"
"""Name of the rule set, written into each verdict."""

Judgement = VerdictIssued | VerdictWithdrawn

_MEDIAN_TO_MEAN: Final = 1.2533  # standard error of a median over that of a mean


class DetectorPolicy(ComparisonPolicy, frozen=True, kw_only=True):
    """All knobs of the detector. Windows are those of vitals (30 s by default, 1 s in demos)."""

    degraded_ratio: float = 1.08
    """Median ratio of a degraded node. Below 1.10, so that a true 10 % is found in spite of noise."""

    faulty_ratio: float = 1.18
    """Median ratio of a node that is swapped at once."""

    windows_to_suspect: int = 3
    windows_to_judge: int = 4
    """Windows in a row until a node as slow as `faulty_ratio` is judged."""

    windows_to_degrade: int = 8
    """Windows in a row until a node as slow as `degraded_ratio` is judged."""

    windows_to_clear: int = 10
    """Windows whose median must be near the peers again before a verdict is withdrawn."""

    clear_ratio: float = 1.04
    """Median ratio below which a verdict is withdrawn."""

    z_min: float = 4.0
    """Standard deviations of noise by which the median of the windows must stand out."""

    grace_windows: int = 2
    """Windows that count for nothing after a node joined or the epoch changed."""

    gap_windows_max: int = 2
    """Windows that may be missing before what came earlier is forgotten."""

    verdict_ttl_s: float = 900.0
    """How long a verdict stands without being renewed, s."""

    rounds_remembered: int = 16
    """Rounds whose noise and pace are remembered."""

    common_ratio: float = 1.2
    """Pace of a whole cohort over its own earlier pace, from which all count as slow."""

    def __post_init__(self) -> None:
        """Refuse knobs that contradict each other.

        Raises:
            BadPolicy: names the inequality that fails, with the numbers.
        """
        rising = ("clear_ratio", "watch_ratio", "degraded_ratio", "faulty_ratio")
        longer = ("windows_to_suspect", "windows_to_judge", "windows_to_degrade", "windows_to_clear")
        for names in (rising, longer):
            for low, high in zip(names, names[1:], strict=False):
                if getattr(self, low) > getattr(self, high):
                    numbers = f"{getattr(self, low)} > {getattr(self, high)}"
                    raise BadPolicy(f"detector: {low} <= {high} does not hold: {numbers}")
        floors = {"clear_ratio": 1.0, "windows_to_suspect": 1, "peers_min": 2, "noise_floor": 1e-6,
                  "indicators_min": 2, "verdict_ttl_s": 1e-3, "rounds_remembered": 1}
        for name, floor in floors.items():
            if getattr(self, name) < floor:
                raise BadPolicy(f"detector: {name} is {getattr(self, name)}; at least {floor}")


class Record(Struct, frozen=True, kw_only=True):
    """What is remembered of one node: its place, how new it is there, its last evidence."""

    incarnation: Incarnation
    job: JobId
    role: Role
    epoch: Epoch
    window: int
    fresh: int = 0
    evidence: tuple[Evidence, ...] = ()


class Cohort(Struct, frozen=True, kw_only=True):
    """Nodes in one role of one job: the round being gathered, and the pace of earlier ones."""

    epoch: Epoch
    gathered: HashTrieMap[NodeId, Vitals] = HashTrieMap()
    awaited: HashTrieSet[NodeId] = HashTrieSet()
    noise: tuple[float, ...] = ()
    pace_ms: tuple[float, ...] = ()


class DetectorState(Struct, frozen=True, kw_only=True):
    """Everything the detector remembers; structure-shared, so a copy costs nothing."""

    records: HashTrieMap[NodeId, Record] = HashTrieMap()
    cohorts: HashTrieMap[tuple[JobId, Role], Cohort] = HashTrieMap()
    standing: HashTrieMap[NodeId, VerdictIssued] = HashTrieMap()


class Observation(Struct, frozen=True, kw_only=True):
    """What came of a batch: the next state, events to append, and remarks that change nothing.

    Notes are of the cohort whose round closed; they repeat while they hold, so log them when they
    change.
    """

    state: DetectorState
    judgements: tuple[Judgement, ...] = ()
    notes: tuple[str, ...] = ()


def restored(verdicts: Iterable[VerdictIssued]) -> DetectorState:
    """Return the state of a detector that takes over: verdicts stand, evidence starts anew."""
    return DetectorState(standing=HashTrieMap({verdict.node: verdict for verdict in verdicts}))


def observe(
    state: DetectorState, batch: Iterable[Vitals], now_ms: int, policy: DetectorPolicy
) -> Observation:
    """Take in windows in the order of their arrival; an empty batch lets verdicts expire."""
    judgements: list[Judgement] = []
    notes: list[str] = []
    for vitals in batch:
        state, closed = _gather(state, vitals, policy)
        if closed is None:
            continue
        state, issued, remarks = _judge_round(state, closed, now_ms, policy)
        judgements += issued
        notes += remarks
    state, expired = _expire(state, now_ms, policy)
    return Observation(state=state, judgements=(*judgements, *expired), notes=tuple(notes))


# --- rounds -----------------------------------------------------------------------------------

_Closed = tuple[tuple[JobId, Role], Mapping[NodeId, Vitals]]


def _gather(
    state: DetectorState, vitals: Vitals, policy: DetectorPolicy
) -> tuple[DetectorState, _Closed | None]:
    """Add a window to its cohort's round; return the windows of a round that this closes."""
    key = (vitals.job, vitals.role)
    cohort = state.cohorts.get(key) or Cohort(epoch=vitals.epoch)
    record = _recorded(state.records.get(vitals.node), vitals, policy)
    if record is None or vitals.epoch < cohort.epoch:
        return state, None
    if vitals.epoch > cohort.epoch:
        cohort = replace(cohort, epoch=vitals.epoch, gathered=HashTrieMap(), awaited=HashTrieSet())
    closed: _Closed | None = None
    if vitals.node in cohort.gathered:
        closed = (key, dict(cohort.gathered.items()))
        cohort = _reopened(cohort)
    cohort = replace(
        cohort,
        gathered=cohort.gathered.insert(vitals.node, vitals),
        awaited=cohort.awaited.discard(vitals.node),
    )
    return cohort, closed


def _reopened(cohort: Cohort) -> Cohort:
    """Begin the next round; all nodes of this one are awaited in it."""
    awaited: HashTrieSet[NodeId] = HashTrieSet(cohort.gathered.keys())
    return replace(cohort, gathered=HashTrieMap(), awaited=awaited)
