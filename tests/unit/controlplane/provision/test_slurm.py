"""Slurm's tools, by what they were recorded to say; and that doubt never drains anything.

`recorded/` holds what a real Slurm (slurmctld, and slurmd for six nodes) answered to the adapter: a
file for each act, with the commands in their order. States that this Slurm could not be brought
into are spelled as its manual does, in the form of the recordings.
"""

from __future__ import annotations

import shlex
import stat
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from controlplane.provision.commands import CommandLines, ExecProvisioner
from controlplane.provision.port import (
    Condition,
    NotOffered,
    Standing,
    ToolMissing,
    ToolRefused,
)
from controlplane.provision.running import run_tool
from controlplane.provision.slurm import SlurmProvisioner

# Every state and mark that sinfo's manual of Slurm 24.05 lists, as `%T|%E` prints it.
STATES = [
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
    ("unknown*|none", Standing.UNKNOWN),
    ("glowing|none", Standing.UNKNOWN),
    ("glowing*|none", Standing.UNKNOWN),
]

HERE = Path(__file__).parent

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

    def asked(self) -> list[str]:
        """What the tools were called with, in order."""
        calls = self._folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def updates(self) -> list[str]:
        """What `scontrol` was asked to change."""
        return [line for line in self.asked() if line.startswith("update ")]


class Recording:
    """One act: the commands in their order, with what came back."""

    def __init__(self, name: str) -> None:
        version, *steps = (HERE / "recorded" / f"{name}.txt").read_text().split("# $ ")
        assert version.startswith("# Slurm "), name
        self.asked: list[str] = []
        self.answers: list[tuple[str, str, int]] = []
        for step in steps:
            command, ended, *words = step.splitlines()
            tool, *arguments = shlex.split(command)
            self.asked.append(" ".join(arguments))
            self.answers.append((tool, "\n".join(words), int(ended.removeprefix("# exit "))))

    def play(self, tools: Tools) -> None:
        """From now on the tools say what was recorded."""
        for answer in self.answers:
            tools.says(*answer)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Tools of this test's own."""
    return Tools(tmp_path)


@pytest.mark.parametrize(("said", "standing"), STATES)
async def test_a_state_is_read_as_slurm_means_it(
    tools: Tools, said: str, standing: Standing
) -> None:
    """Every state of the manual; what nobody knows is unknown."""
    tools.says("sinfo", f"gpu-07|{said}\n")

    found = await tools.slurm.condition("gpu-07")

    assert found.standing is standing
    assert found.words


OUR_REASON = "changeover: work 1.40x its peers"
SWEPT = "changeover: failed its sweep (before: disk dead)"

LOOKS = [
    ("idle", "gpu-04", Standing.IN_SERVICE, "idle"),
    ("allocated", "gpu-03", Standing.IN_SERVICE, "allocated"),
    ("drained-by-us", "gpu-04", Standing.CORDONED, f"drained: {OUR_REASON}"),
    ("draining", "gpu-03", Standing.CORDONED, f"draining: {OUR_REASON}"),
    ("drained-by-administrator", "gpu-04", Standing.CORDONED, "drained: disk swap"),
    ("drained-while-down", "gpu-05", Standing.CORDONED, f"drained: {SWEPT}"),
    (
        "drained-not-responding",
        "gpu-04",
        Standing.CORDONED,
        "drained*: changeover: lost for 900 s (before: Not responding)",
    ),
    ("maint", "gpu-01", Standing.CORDONED, "maint"),
    ("down", "gpu-04", Standing.DOWN, "down*: Not responding"),
    ("set-down-by-administrator", "gpu-05", Standing.DOWN, "down: disk dead"),
    ("undrained-set-down", "gpu-05", Standing.DOWN, "down*: disk dead"),
    ("resumed", "gpu-04", Standing.DOWN, "idle*"),
    (
        "invalid",
        "gpu-06",
        Standing.UNKNOWN,
        "inval: Low RealMemory (reported:24105 < 100.00% of configured:9000000)",
    ),
    ("not-registered", "gpu-05", Standing.UNKNOWN, "unknown"),
]

DRAINS = [
    ("drain", "gpu-04", "work 1.40x its peers"),
    ("drain-allocated", "gpu-03", "work 1.40x its peers"),
    ("drain-down", "gpu-04", "lost for 900 s"),
    ("drain-set-down", "gpu-05", "failed its sweep"),
    ("drain-again", "gpu-05", "work 1.40x its peers"),
]

RESUMES = [
    ("resume", "gpu-04"),
    ("resume-draining", "gpu-03"),
    ("resume-not-responding", "gpu-04"),
    ("undrain-set-down", "gpu-05"),
]

REFUSALS = [
    ("unknown-node", "gpu-99", "sinfo knows no node gpu-99"),
    ("no-controller", "gpu-04", r"exited with 1: .*contact slurm controller \(connect failure\)"),
    ("denied", "gpu-02", "exited with 1: slurm_update error: Invalid user id"),
    ("invalid", "gpu-06", "not drained"),
    ("not-registered", "gpu-05", "not drained"),
]


@pytest.mark.parametrize(("name", "node", "standing", "words"), LOOKS)
async def test_a_node_is_seen_as_a_real_slurm_told_it(
    tools: Tools, name: str, node: str, standing: Standing, words: str
) -> None:
    """The command is the one that was recorded, and what came back is understood."""
    recording = Recording(name)
    recording.play(tools)

    assert await tools.slurm.condition(node) == Condition(standing=standing, words=words)
    assert tools.asked() == recording.asked


@pytest.mark.parametrize(("name", "node", "why"), DRAINS)
async def test_a_drain_is_the_one_that_a_real_slurm_took(
    tools: Tools, name: str, node: str, why: str
) -> None:
    """What stood as the reason of a node that was down stands in ours, also the second time."""
    recording = Recording(name)
    recording.play(tools)

    await tools.slurm.cordon(node, why)

    assert tools.asked() == recording.asked


@pytest.mark.parametrize(("name", "node"), RESUMES)
async def test_a_node_is_given_back_as_a_real_slurm_took_it(
    tools: Tools, name: str, node: str
) -> None:
    """Resumed if it was ours alone; a node that somebody had set down is only undrained."""
    recording = Recording(name)
    recording.play(tools)

    await tools.slurm.uncordon(node)

    assert tools.asked() == recording.asked


@pytest.mark.parametrize(("name", "node", "words"), REFUSALS)
async def test_a_real_refusal_is_an_error_with_slurms_words(
    tools: Tools, name: str, node: str, words: str
) -> None:
    """No such node, no controller, no right, a state that is no reason to act: no more is asked."""
    recording = Recording(name)
    recording.play(tools)

    with pytest.raises(ToolRefused, match=words):
        await tools.slurm.cordon(node, "slow")

    assert tools.asked() == recording.asked


@pytest.mark.parametrize(
    ("name", "node", "words"),
    [
        ("unknown-node-update", "gpu-99", "Invalid node name specified"),
        ("no-controller-update", "gpu-04", "Unable to contact slurm controller"),
    ],
)
async def test_a_node_or_controller_that_goes_between_look_and_drain_is_an_error(
    tools: Tools, name: str, node: str, words: str
) -> None:
    """What `scontrol` was recorded to say then is what the operator reads."""
    recording = Recording(name)
    tools.says("sinfo", f"{node}|idle|none")
    recording.play(tools)

    with pytest.raises(ToolRefused, match=words):
        await tools.slurm.cordon(node, "slow")

    assert tools.asked()[1:] == recording.asked


async def test_what_an_administrator_drained_is_left_alone_as_recorded(tools: Tools) -> None:
    """Neither drained again nor resumed: Slurm is only looked at."""
    Recording("drained-by-administrator").play(tools)

    await tools.slurm.cordon("gpu-04", "slow")
    with pytest.raises(ToolRefused, match="somebody else: drained: disk swap"):
        await tools.slurm.uncordon("gpu-04")

    assert tools.updates() == []


async def test_a_state_that_hides_a_drain_is_not_taken_for_one_resumed(tools: Tools) -> None:
    """`inval` shows no drain: giving the node back is an error, to be tried again."""
    Recording("invalid").play(tools)

    with pytest.raises(ToolRefused, match="not resumed"):
        await tools.slurm.uncordon("gpu-06")


async def test_slurms_tools_get_the_sites_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM_CONF says where the controller is; SINFO_FORMAT would change what we read."""
    monkeypatch.setenv("SLURM_CONF", "site.conf")
    monkeypatch.setenv("SINFO_FORMAT", "%N")
    tool = tmp_path / "sinfo"
    tool.write_text('#!/bin/sh\necho "gpu-07|idle|$SLURM_CONF $SINFO_FORMAT"\n')
    tool.chmod(0o755)

    found = await SlurmProvisioner("scontrol", str(tool)).condition("gpu-07")

    assert found.words.strip() == "idle: site.conf"


def test_every_recording_is_played() -> None:
    """None lies about that no test reads."""
    played = {row[0] for row in (*LOOKS, *DRAINS, *RESUMES, *REFUSALS)}
    played |= {"unknown-node-update", "no-controller-update"}

    assert played == {each.stem for each in (HERE / "recorded").glob("*.txt")}


async def test_a_node_is_drained_with_our_reason_and_resumed(tools: Tools) -> None:
    """The reason is one line and begins with our mark."""
    tools.says("sinfo", "gpu-07|idle|none")
    await tools.slurm.cordon("gpu-07", "work 1.40x\nits peers")
    tools.says("sinfo", "gpu-07|drained|changeover: work 1.40x its peers")
    await tools.slurm.uncordon("gpu-07")

    assert tools.updates() == [
        "update NodeName=gpu-07 State=DRAIN Reason=changeover: work 1.40x its peers",
        "update NodeName=gpu-07 State=RESUME",
    ]


@pytest.mark.parametrize(
    "theirs",
    [
        "disk dead",
        'fan 2 of "b", x=y; it\'s loud',
        "rack (before: rack 7) moved",
        "changed (by ann)",
        " ".join(["long"] * 400),
    ],
)
@pytest.mark.parametrize("why", ["slow", "worse (before: better)", "slow)"])
async def test_a_node_that_was_set_down_is_given_back_with_the_words_it_had(
    tools: Tools, theirs: str, why: str
) -> None:
    """Whatever an administrator wrote stands there again, and nothing of ours."""
    tools.says("sinfo", f"gpu-07|down|{theirs}")
    await tools.slurm.cordon("gpu-07", why)
    _, _, ours = tools.updates()[-1].partition(" Reason=")
    tools.says("sinfo", f"gpu-07|drained|{ours}")
    await tools.slurm.uncordon("gpu-07")

    assert ours.startswith("changeover: ")
    assert tools.updates()[-1] == f"update NodeName=gpu-07 State=UNDRAIN Reason={theirs}"


@pytest.mark.parametrize(
    "said",
    [
        "drained|Kill task failed",
        "drained*|disk swap",
        "drained|disk swap, after changeover: slow",
    ],
)
async def test_what_somebody_else_drained_is_neither_drained_again_nor_resumed(
    tools: Tools, said: str
) -> None:
    """An administrator's reason stays where it is."""
    tools.says("sinfo", f"gpu-07|{said}")

    await tools.slurm.cordon("gpu-07", "slow")
    with pytest.raises(ToolRefused, match="somebody else"):
        await tools.slurm.uncordon("gpu-07")

    assert tools.updates() == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", 0),
        ("gpu-07|glowing|none", 0),
        ("gpu-08|idle|none", 0),
        ("slurm_load_partitions: Unable to contact controller", 1),
    ],
)
async def test_doubt_never_drains(tools: Tools, words: str, code: int) -> None:
    """No such node, a word that nobody knows, a controller that is away: an error, no update."""
    tools.says("sinfo", words, code)

    with pytest.raises(ToolRefused):
        await tools.slurm.cordon("gpu-07", "slow")

    assert tools.updates() == []


async def test_a_refusal_has_slurms_words(tools: Tools) -> None:
    """What `scontrol` says on stderr is what the operator reads."""
    tools.says("sinfo", "gpu-07|idle|none")
    tools.says("scontrol", "slurm_update error: Access/permission denied", 1)

    with pytest.raises(ToolRefused, match="permission denied"):
        await tools.slurm.cordon("gpu-07", "slow")


async def test_a_tool_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """Its child, which would hold the pipe for an hour, does not outlive the error."""
    tool = tmp_path / "sinfo"
    tool.write_text(f"#!/bin/sh\nsleep 3600 & echo $! > '{tmp_path}/child'; wait\n")
    tool.chmod(0o755)

    with pytest.raises(ToolRefused, match=r"not done within 0\.5 s"):
        await run_tool([str(tool)], timeout_s=0.5)

    child = int((tmp_path / "child").read_text())
    assert await is_gone(child), f"process {child} still runs"


async def is_gone(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(500):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        await anyio.sleep(0.01)
    return False


async def test_a_tool_that_never_stops_talking_fills_no_memory(tmp_path: Path) -> None:
    """What is kept of its words has an end, as has its time."""
    tool = tmp_path / "sinfo"
    tool.write_text("#!/bin/sh\nhead -c 8000000 /dev/zero | tr '\\0' x\n")
    tool.chmod(0o755)

    assert len(await run_tool([str(tool)])) == 1 << 20
    with pytest.raises(ToolRefused, match="not done within"):
        await run_tool(["yes"], timeout_s=0.3)


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
async def test_a_tool_that_is_killed_is_an_error(tmp_path: Path, signal: str) -> None:
    """Half an answer is none: nothing of it is believed."""
    tool = tmp_path / "sinfo"
    tool.write_text(f"#!/bin/sh\necho 'gpu-07|idle|none'; kill -{signal} $$\n")
    tool.chmod(0o755)

    with pytest.raises(ToolRefused, match="exited with -"):
        await SlurmProvisioner("scontrol", str(tool)).cordon("gpu-07", "slow")


async def test_a_missing_tool_is_a_clear_error() -> None:
    """It names the program and asks the right question."""
    slurm = SlurmProvisioner("/no/such/scontrol", "/no/such/sinfo")

    with pytest.raises(ToolMissing, match="/no/such/sinfo: no such program: is the scheduler's"):
        await slurm.cordon("gpu-07", "slow")


@pytest.mark.parametrize("machine", ["", "-h", "all", "ALL", "gpu[01-99]", "ALL,x", "a b", "x;y"])
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
