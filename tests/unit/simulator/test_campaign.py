"""A scenario as a live campaign: what is done when, and what cannot be played here."""

from pathlib import Path

import msgspec
import pytest

from simulator import validating
from simulator.campaign import campaign
from simulator.core import EPOCH_MS
from simulator.errors import BadLog, BadScenario
from simulator.faults import Kind, draw
from simulator.parts import STRATEGIES
from simulator.scenario_file import load, policy_for
from simulator.validating import origins, validate
from simulator.world import World
from statemachine import events as e
from statemachine.campaign import Played
from statemachine.codec import encode_recorded
from statemachine.ids import Position
from statemachine.policy import knobs_of

LIVE = Path(__file__).parents[3] / "scenarios" / "live.toml"
REFUSED = {
    "several ranks a node": ("gpus_per_node = 1", "gpus_per_node = 2", "fleet.gpus_per_node = 2"),
    "spares": ("spares = 0", "spares = 3", "fleet.spares = 3: a live campaign needs 0"),
    "too large": ("dp = 4", "dp = 65", "65 slots; a live campaign has 64 at most"),
    "unknown key": ("seconds = 80.0", "second = 80.0", "did you mean live.seconds?"),
    "no time": ("seconds = 80.0", "seconds = 2.0", "must be above live.settle_s = 5.0"),
}


def test_faults_keep_their_order_their_victims_and_their_share_of_the_time() -> None:
    """The campaign is the scenario's own trace, squeezed into the seconds after settling."""
    scenario, found = load(LIVE), campaign(LIVE)
    drawn = [f for f in draw(scenario, 0).faults if f.kind is not Kind.FALSE_ALARM]

    assert [i.kind for i in found.injections] == ["grey", "kill", "drain"]
    assert len(drawn) == len(found.injections)
    for fault, injection in zip(drawn, found.injections, strict=True):
        assert injection.at_s == pytest.approx(5 + fault.at_s / scenario.horizon_s * 75)
        assert fault.machine in (injection.machine, injection.slot)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_played_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    """The line names the file, the key, its value and what is allowed."""
    old, new, expected = REFUSED[case]
    path = tmp_path / "f.toml"
    text = LIVE.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")

    with pytest.raises(BadScenario) as refused:
        campaign(path)

    assert str(path) in str(refused.value)
    assert expected in str(refused.value)


def test_a_simulated_run_is_validated_without_an_error(tmp_path: Path) -> None:
    """A log that the simulator made itself comes out again: same replacements, same downtimes."""
    found = campaign(LIVE)
    played = Played(
        launched_at_ms=EPOCH_MS,
        ended_at_ms=EPOCH_MS + 80_000,
        step_ms=100.0,
        steps=790,
        injections=found.injections,
    )
    (tmp_path / "scenario.toml").write_bytes(LIVE.read_bytes())
    (tmp_path / "campaign.json").write_bytes(msgspec.json.encode(played))
    (tmp_path / "events.jsonl").write_bytes(b"".join(_log(tmp_path, played)))
    again = validate(tmp_path)

    assert again.same_replacements == len(found.injections)
    assert again.measured_swaps == again.simulated_swaps == len(found.injections)
    kill = next(pair for pair in again.pairs if pair.kind == "kill")
    assert kill.error == pytest.approx(0.0, abs=0.05)
    known, assumed = origins(again)
    assert known.startswith("measured (incidents: 10 % to 90 %): delta_s 0.3 (1: ")
    assert "planned_s" in known
    assert "load_s" in assumed
    (tmp_path / "campaign.json").unlink()
    with pytest.raises(BadLog, match=r"campaign\.json: cannot be read"):
        validate(tmp_path)


def _log(folder: Path, played: Played) -> list[bytes]:
    """The log of a fleet with costs that a machine could have: made once, then measured."""
    read = load(folder / "scenario.toml")
    costs = {"delta_s": 0.2, "transfer_s": 0.1, "detect_s": 0.1, "rehearse_s": 2.0}
    costs |= {"first_step_s": 0.0, "planned_s": 0.05}
    policy = e.Recorded(
        position=Position(1),
        at_ms=EPOCH_MS,
        writer="t",
        event=e.PolicyChanged(version=1, knobs=knobs_of(policy_for(read)), by="t"),
    )
    again = validating._scenario(read, played, [policy], costs)
    kept: list[e.Recorded] = []
    World(
        again,
        STRATEGIES["standby-swap-guard"],
        validating._trace(played),
        explicit=True,
        keep=kept.append,
    ).run()
    return [encode_recorded(entry) + b"\n" for entry in kept]
