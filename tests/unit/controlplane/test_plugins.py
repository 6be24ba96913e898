"""Plug-ins by name: found among the entry points of installed packages, and put to work."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.config import Settings, load_settings
from controlplane.errors import BadConfig, PluginFailed
from controlplane.plugins import plugins_of
from controlplane.provision.opening import open_provisioner
from statemachine.policy import Policy
from statemachine.state import FleetState

MODULE = """
from statemachine.decide import Decision

def rest(state, now_ms, policy):
    return None

async def judge(windows, states, state_events):
    pass

async def measure():
    return
    yield

def hear(recorded, state):
    pass

def wrong(state, now_ms, policy):
    return "restart"

number = 7

class Racks:
    def __init__(self, table):
        self.table = table
"""

ENTRY_POINTS = """
[changeover.policies]
rest = mytool_plugins:rest
wrong = mytool_plugins:wrong
number = mytool_plugins:number
gone = mytool_plugins:gone
absent = mytool_absent:rule
[changeover.detectors]
judge = mytool_plugins:judge
[changeover.metrics]
measure = mytool_plugins:measure
[changeover.listeners]
hear = mytool_plugins:hear
[changeover.provisioners]
racks = mytool_plugins:Racks
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with plug-ins, as pip would leave it."""
    (tmp_path / "mytool_plugins.py").write_text(MODULE)
    info = tmp_path / "mytool-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mytool\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


def settings(tmp_path: Path, text: str) -> Settings:
    """Settings from a file."""
    target = tmp_path / "changeover.toml"
    target.write_text(text)
    return load_settings({}, {}, target)


def test_every_kind_of_plug_in_is_found_by_its_name(tmp_path: Path) -> None:
    """The settings name them; what is loaded is what the package has."""
    found = plugins_of(
        settings(
            tmp_path,
            '[plugins]\npolicy = "rest"\ndetectors = ["judge"]\n'
            'metrics = ["measure"]\nlisteners = ["hear"]\n',
        )
    )

    assert found.rule is not None
    assert found.rule.__name__ == "rest"
    assert [f.__name__ for f in found.detectors] == ["judge"]
    assert [f.__name__ for f in found.sources] == ["measure"]
    assert [f.__name__ for f in found.listeners] == ["hear"]


def test_a_scheduler_of_ones_own_is_found_and_given_its_table(tmp_path: Path) -> None:
    """With whatever it wants to know."""
    made = settings(tmp_path, '[provisioner]\nkind = "racks"\nroom = 7\n').provisioner
    assert made is not None

    assert open_provisioner(made).table == {"room": 7}  # type: ignore[attr-defined]


def test_a_misspelt_name_says_what_is_installed(tmp_path: Path) -> None:
    """And nothing starts."""
    with pytest.raises(BadConfig, match="installed: absent, gone, number, rest, wrong"):
        settings(tmp_path, '[plugins]\npolicy = "rset"\n')
    with pytest.raises(BadConfig, match="must be one of exec, kubernetes, racks, slurm"):
        settings(tmp_path, '[provisioner]\nkind = "rack"\n')


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ('"number"', "mytool_plugins:number is of type int, which nothing can call"),
        ('"gone"', "mytool_plugins:gone cannot be loaded: AttributeError"),
        ('"absent"', "mytool_absent:rule cannot be loaded: ModuleNotFoundError"),
        ('["rest", "wrong"]', "one rule decides first"),
    ],
)
def test_a_plug_in_that_cannot_be_one_is_named(tmp_path: Path, named: str, words: str) -> None:
    """With its address, before anything starts."""
    found = settings(tmp_path, f"[plugins]\npolicy = {named}\n")

    with pytest.raises(BadConfig, match=words):
        plugins_of(found)


def test_a_rule_that_returns_something_else_is_named(tmp_path: Path) -> None:
    """Not the place where we stumble over what it returned."""
    rule = plugins_of(settings(tmp_path, '[plugins]\npolicy = "wrong"\n')).rule
    assert rule is not None

    with pytest.raises(PluginFailed, match=r"the rule 'wrong'.*returned a str"):
        rule(FleetState(), 0, Policy())
