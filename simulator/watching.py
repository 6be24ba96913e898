"""The real detector over made-up windows: when is a slow machine accused, and of what?

One slow machine and a few healthy peers are a cohort; the detector of production is fed their
windows until it acts or patience is over. Not modelled: several slow machines in one cohort.
"""

import random

from msgspec import Struct

from statemachine.detector import DetectorState, observe
from statemachine.detector_policy import DetectorPolicy
from statemachine.events import Verdict, VerdictIssued
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Role, Slot
from statemachine.vitals import STEP_MS, WAIT_MS, WORK_MS, Metric, Vitals

WINDOWS_MAX = 30
"""Windows after which a machine that nobody accused is taken for one that nobody will."""

_STEPS = 10


class Watched(Struct, frozen=True):
    """The verdict, and after how many windows it fell; None if it never did."""

    verdict: VerdictIssued | None
    windows: int


def watch(
    severity: float,
    step_ms: float,
    noise: float,
    peers: int,
    *,
    policy: DetectorPolicy,
    chance: random.Random,
) -> Watched:
    """Feed the detector until it wants the first node out."""
    state = DetectorState()
    bias = [1 + chance.gauss(0, noise / 3) for _ in range(peers + 1)]
    for window in range(WINDOWS_MAX):
        work = [step_ms * own * (1 + chance.uniform(-noise, noise)) for own in bias]
        work[0] *= severity
        whole = max(work) * 1.05
        batch = [_vitals(node, window, own, whole) for node, own in enumerate(work)]
        seen = observe(state, batch, (window + 1) * 1000, policy)
        state = seen.state
        for judged in seen.judgements:
            if not isinstance(judged, VerdictIssued) or judged.node != "w0":
                continue
            if judged.verdict in (Verdict.DEGRADED, Verdict.FAULTY):
                return Watched(judged, window + 1)
    return Watched(None, WINDOWS_MAX)


def _metric(value: float) -> Metric:
    return Metric(count=_STEPS, mean=value, p50=value, p95=value)


def _vitals(node: int, window: int, work: float, whole: float) -> Vitals:
    return Vitals(
        node=NodeId(f"w{node}"),
        incarnation=Incarnation(1),
        job=JobId("job"),
        slot=Slot(node),
        role=Role("only"),
        epoch=Epoch(1),
        window=window,
        started_at_ms=window * 1000,
        ended_at_ms=(window + 1) * 1000,
        steps=_STEPS,
        last_step=(window + 1) * _STEPS - 1,
        metrics={
            WORK_MS: _metric(work),
            WAIT_MS: _metric(whole - work),
            STEP_MS: _metric(whole),
        },
    )
