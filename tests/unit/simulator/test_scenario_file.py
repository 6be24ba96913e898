"""What a scenario file may say, and how it is refused."""

from pathlib import Path

import pytest

from simulator.errors import BadScenario
from simulator.scenario_file import load

REFUSED = {
    "unknown key": ("days = 1\nreplication = 3", "replication = 3: no such key; did you mean repl"),
    "unknown key in a table": ("[faults]\nlemon_shar = 0.1", "faults.lemon_shar = 0.1"),
    "wrong type": ('days = "long"', "days = 'long': Expected `float`"),
    "negative rate": ("[faults]\nper_1000_node_days = -1", "faults.per_1000_node_days = -1.0"),
    "probability over 1": ("[guard]\nfalse_pass = 1.5", "guard.false_pass = 1.5: must be from 0"),
    "more slots than nodes": ("[fleet]\nnodes = 3", "fleet.nodes = 3: fewer than 128 slots and 1"),
    "unknown choice": ('[costs]\nmodel = "ft-hsd"', "did you mean ft-hsdp?"),
    "unknown component": ("[costs.overrides]\ntransfer = 1", "did you mean transfer_s?"),
    "impossible layout": ("[job]\naxes = { pp = 3, tp = 3 }", "job.axes = {'pp': 3, 'tp': 3}"),
    "unsafe policy": ("[policy]\nlease_ttl_s = 1", "policy"),
    "a time without end": ("days = inf", "days = inf: must be above 0, and finite"),
    "a century and more": ("days = 1e308", "days = 1e+308: at most 36,525"),
    "replications without end": (f"replications = {10**18}", f"{10**18}: at most 1,000,000"),
    "standbys without end": ("[fleet]\nstandbys = 1_000_000_000", "1000000000: at most 1,048,576"),
    "a layout without end": (
        "[job]\naxes = { pp = 90000, dp = 90000 }",
        "in all; at most 1,048,576",
    ),
    "a rate without end": ("[faults]\nper_1000_node_days = 1e12", "days; at most 10,000,000"),
    "grey without end": ("[grey]\nper_1000_node_days = 1e12", "days; at most 10,000,000"),
    "no number": ("[repair]\nmean_h = nan", "repair.mean_h = nan: must be a finite number"),
    "unknown key in a class": (
        '[[faults.classes]]\nname = "x"\nshare = 1\ndetct_s = 3',
        "faults.classes[0].detct_s = 3: no such key; did you mean faults.classes[0].detect_s?",
    ),
    "unknown strategy": ('strategies = ["hot-spare"]', "did you mean hot-spares?"),
    "negative cost": ("[costs.overrides]\ndelta_s = -1", "costs.overrides.delta_s = -1.0: seconds"),
    "no weights": ("[grey]\nweights = [0, 0, 0]", "none below 0, and not all 0"),
    "no samples": ('[repair]\nkind = "resample"', "needs repair.samples_h or repair.trace"),
    "no TOML": ("days = = 1", "no TOML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    """An error names the file, the key path, the value and what is allowed."""
    text, expected = REFUSED[case]
    path = tmp_path / "bad.toml"
    path.write_text(text, "utf-8")

    with pytest.raises(BadScenario) as refused:
        load(path)

    assert str(path) in str(refused.value)
    assert expected in str(refused.value)


def test_every_scenario_of_the_repository_is_valid() -> None:
    """Each file in scenarios/ can be read."""
    root = Path(__file__).parents[3]
    found = sorted((root / "scenarios").glob("*.toml"))

    assert found
    for path in found:
        load(path)
