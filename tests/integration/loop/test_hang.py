"""A hang in a real fleet: said once its phase lasts longer than it ever does, and not before."""

from pathlib import Path

import pytest

from controlplane.etcd_server import EtcdServer
from tests.integration.loop.real_fleet import RealFleet, real_fleet
from worker.faultpoints import Act, reached

pytestmark = [pytest.mark.etcd, pytest.mark.soak]

EVALUATED_S = 6.0
LEAST_S = 2.0
"""The deadline of training here, whose windows come many times a second."""


def said(fleet: RealFleet) -> list[str]:
    """What the controller said of jobs that stand still."""
    lines = (fleet.run.logs / "c0.log").read_text().splitlines()
    return [line for line in lines if "no progress" in line]


@pytest.mark.timeout(150)
async def test_a_rank_that_hangs_is_told_from_a_phase_that_takes_long(
    own_etcd: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation of three times the deadline of training is no hang; a rank that stands still in
    a step, alive, is said to hang in training, with the deadline that was learned. Nobody is judged
    by it, and the run goes on when the rank does.
    """
    monkeypatch.setenv("CHANGEOVER_WINDOW_S", "0.2")
    knobs = {"detector": {"hang_least_s": LEAST_S}}
    extra = ["--slow-ms", "20", "--evaluate-at", "150", "--evaluate-s", str(EVALUATED_S)]
    async with real_fleet(
        own_etcd, tmp_path / "fleet", nodes=2, standbys=0, steps=400, extra=extra, knobs=knobs
    ) as fleet:
        await fleet.until("it has evaluated", lambda: fleet.step() >= 170, 60.0)
        assert said(fleet) == [], "evaluating takes its time"

        fleet.arm("n1", ["optimizer.begin"], Act.HOLD)
        held = reached(fleet._faults("n1"))
        await fleet.until("n1 stands still", held.exists)
        await fleet.until("the hang is said", lambda: len(said(fleet)) == 1, 20.0)
        (line,) = said(fleet)
        assert "in phase training" in line, line
        assert not fleet.lost(), fleet.story()
        fleet.release("n1")
        await fleet.goes_on()
        await fleet.digest()

    assert len(said(fleet)) == 1, "once"
