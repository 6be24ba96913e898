"""Slurm's tools, by what they were recorded to say; and that doubt never drains anything."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from controlplane.provision.commands import CommandLines, ExecProvisioner
from controlplane.provision.port import (
    Condition,
    NotOffered,
    Standing,
    ToolMissing,
    ToolRefused,
)
from controlplane.provision.slurm import SlurmProvisioner

# `sinfo --noheader --Node --nodes NODE -o "%T|%E"`: every state and mark that sinfo's manual of
# Slurm 24.05 lists, in the form in which that option prints it, with the reasons that slurmctld
# gives. No Slurm was at hand to record more than its manual shows.
RECORDED = [
    ("idle|none", Standing.IN_SERVICE),
    ("allocated|none", Standing.IN_SERVICE),
    ("mixed|none", Standing.IN_SERVICE),
    ("mixed-|none", Standing.IN_SERVICE),
    ("idle~|none", Standing.IN_SERVICE),
    ("completing|none", Standing.IN_SERVICE),
    ("draining|changeover: work 1.40x its peers", Standing.CORDONED),
    ("drained|changeover: failed its sweep", Standing.CORDONED),
    ("drained|Kill task failed", Standing.CORDONED),
    ("maint|upgrade", Standing.CORDONED),
    ("down|Not responding", Standing.DOWN),
    ("down*|Not responding", Standing.DOWN),
    ("idle*|none", Standing.DOWN),
    ("fail|disk", Standing.DOWN),
    ("allocated*|none", Standing.DOWN),
    ("drained*|Not responding", Standing.CORDONED),
    ("draining@|Reboot ASAP", Standing.CORDONED),
    ("idle+maintenance+reserved|none", Standing.CORDONED),
    ("reserved|none", Standing.IN_SERVICE),
    ("planned|none", Standing.IN_SERVICE),
    ("blocked|none", Standing.IN_SERVICE),
    ("idle#|none", Standing.IN_SERVICE),
    ("idle%|none", Standing.IN_SERVICE),
    ("idle!|none", Standing.IN_SERVICE),
    ("allocated$|none", Standing.IN_SERVICE),
    ("failing|NHC: check_hw_gpu", Standing.DOWN),
    ("powered_down|none", Standing.DOWN),
    ("future|none", Standing.UNKNOWN),
    ("inval|Low RealMemory", Standing.UNKNOWN),
    ("perfctrs|none", Standing.UNKNOWN),
    ("powering_up|none", Standing.UNKNOWN),
    ("powering_down|none", Standing.UNKNOWN),
    ("reboot_issued|Reboot ASAP", Standing.UNKNOWN),
    ("reboot_requested|Reboot ASAP", Standing.UNKNOWN),
    ("unknown|none", Standing.UNKNOWN),
    ("glowing|none", Standing.UNKNOWN),
]

FAKE = """#!/bin/sh
echo "$*" >> '{folder}/calls'
{{ read -r code; words=$(cat); }} < "$0.says"
if [ "$code" -ne 0 ]; then echo "$words" >&2; else echo "$words"; fi
exit "$code"
"""


class Tools:
    """`scontrol` and `sinfo` as programs that say what was recorded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("scontrol", "sinfo"):
            target = folder / name
            target.write_text(FAKE.format(folder=folder))
            target.chmod(target.stat().st_mode | stat.S_IXUSR)
            self.says(name, "")
        self.slurm = SlurmProvisioner(str(folder / "scontrol"), str(folder / "sinfo"))

    def says(self, name: str, words: str, code: int = 0) -> None:
        """What a tool says from now on."""
        (self._folder / f"{name}.says").write_text(f"{code}\n{words}")

    def updates(self) -> list[str]:
        """What `scontrol` was asked to change."""
        calls = self._folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [line for line in lines if line.startswith("update ")]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Tools of this test's own."""
    return Tools(tmp_path)


@pytest.mark.parametrize(("said", "standing"), RECORDED)
async def test_a_state_is_read_as_slurm_means_it(
    tools: Tools, said: str, standing: Standing
) -> None:
    """Every state that was recorded; what nobody knows is unknown."""
    tools.says("sinfo", said + "\n")

    found = await tools.slurm.condition("gpu-07")

    assert found.standing is standing
    assert found.words


async def test_a_node_is_drained_with_our_reason_and_resumed(tools: Tools) -> None:
    """The reason is one line and begins with our mark."""
    tools.says("sinfo", "idle|none")
    await tools.slurm.cordon("gpu-07", "work 1.40x\nits peers")
    tools.says("sinfo", "drained|changeover: work 1.40x its peers")
    await tools.slurm.uncordon("gpu-07")

    assert tools.updates() == [
        "update NodeName=gpu-07 State=DRAIN Reason=changeover: work 1.40x its peers",
        "update NodeName=gpu-07 State=RESUME",
    ]


@pytest.mark.parametrize("said", ["drained|Kill task failed", "drained*|disk swap"])
async def test_what_somebody_else_drained_is_neither_drained_again_nor_resumed(
    tools: Tools, said: str
) -> None:
    """An administrator's reason stays where it is."""
    tools.says("sinfo", said)

    await tools.slurm.cordon("gpu-07", "slow")
    with pytest.raises(ToolRefused, match="somebody else"):
        await tools.slurm.uncordon("gpu-07")

    assert tools.updates() == []


@pytest.mark.parametrize(
    ("words", "code"),
    [("", 0), ("glowing|none", 0), ("slurm_load_partitions: Unable to contact controller", 1)],
)
async def test_doubt_never_drains(tools: Tools, words: str, code: int) -> None:
    """No such node, a word that nobody knows, a controller that is away: an error, no update."""
    tools.says("sinfo", words, code)

    with pytest.raises(ToolRefused):
        await tools.slurm.cordon("gpu-07", "slow")

    assert tools.updates() == []


async def test_a_refusal_has_slurms_words(tools: Tools) -> None:
    """What `scontrol` says on stderr is what the operator reads."""
    tools.says("sinfo", "idle|none")
    tools.says("scontrol", "slurm_update error: Access/permission denied", 1)

    with pytest.raises(ToolRefused, match="permission denied"):
        await tools.slurm.cordon("gpu-07", "slow")


async def test_a_missing_tool_is_a_clear_error() -> None:
    """It names the program and asks the right question."""
    slurm = SlurmProvisioner("/no/such/scontrol", "/no/such/sinfo")

    with pytest.raises(ToolMissing, match="/no/such/sinfo: no such program: is the scheduler's"):
        await slurm.cordon("gpu-07", "slow")


@pytest.mark.parametrize("machine", ["", "-h", "gpu[01-99]", "ALL,x", "a b", "x;y"])
async def test_a_name_that_means_more_than_one_node_is_refused(tools: Tools, machine: str) -> None:
    """A range or an option would drain a cluster."""
    with pytest.raises(ToolRefused, match="no name of a Slurm node"):
        await tools.slurm.cordon(machine, "slow")

    assert tools.updates() == []


async def test_programs_of_ones_own_get_arguments_and_no_shell(tmp_path: Path) -> None:
    """What is asked stands in one argument, whatever is in it."""
    target = tmp_path / "seen"
    script = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
    lines = CommandLines(
        cordon=(sys.executable, "-c", script, str(target), "{machine}", "because {reason}"),
        uncordon=("true",),
        condition=("echo", "in service: {machine}"),
    )
    mine = ExecProvisioner(lines)

    await mine.cordon("m1", "$(rm -rf x); y")

    assert target.read_text() == repr(["m1", "because $(rm -rf x); y"])
    assert await mine.condition("m1") == Condition(
        standing=Standing.IN_SERVICE, words="in service: m1"
    )
    with pytest.raises(NotOffered):
        await mine.request(2, "loss")
