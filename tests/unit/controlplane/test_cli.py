"""The command line: quick to start, one line when it fails, an exit code that says which way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cli import VERBS, Verbs, cli
from controlplane.cli.failing import run_to_exit

Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: str) -> tuple[int, str, list[str]]:
    """Run a command line; return exit code, stdout, and the lines of stderr."""
    with pytest.raises(SystemExit) as end:
        run_to_exit(cli, "changeover", arguments)
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, said.out, said.err.splitlines()


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHANGEOVER_ETCD", "CHANGEOVER_FLEET", "CHANGEOVER_CONFIG", "CHANGEOVER_DEMO"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["status", "--bogus"], "status: No such option '--bogus'"),
        (["status", "--etcd", "nonsense"], "--etcd: 'nonsense'"),
        (["status", "--fleet", "A B"], "--fleet: 'A B'"),
        (["controller", "--log-level", "inf"], "did you mean info?"),
        (["controller", "--leader-ttl-s", "0.1"], "--leader-ttl-s: '0.1'"),
        (["controller", "--name", "-x"], "--name: '-x'"),
        (["drain"], "drain: Missing argument 'NODE'"),
        (["release", "n0", "--force"], "say why with --comment"),
        (["job", "declare", "--axes", "dp=0"], "axis dp is 0"),
        (["job", "declare", "--axes", "dp"], "'dp' is not NAME=VALUE"),
        (["job", "declare", "--axes", "dp=2", "--axes", "dp=3"], "'dp' is named twice"),
        (["job", "declare", "--axes", "dp=2", "B@D"], "job name 'B@D'"),
        (["init"], "init: Missing argument 'DIR'"),
        (["init", "/no/pki", "--node", "N0"], "node name 'N0'"),
        (["init", "/no/pki", "--host", "a b"], "host 'a b'"),
        (["init", "/no/pki", "--node", "x" * 60], "a certificate has room for 64"),
        (["init", "/no/pki", "--apply"], "--etcd: 'http://127.0.0.1:2379': must be https://"),
        (["log", "tail", "--from", "0"], "log tail: Invalid value for '--from'"),
        (["log", "verify", "/no/such/file"], "cannot be read"),
        (["status", "--config", "/no/such/file"], "does not exist"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    capsys: Captured, arguments: list[str], words: str
) -> None:
    """What is wrong, whose it is, and where help is to be had."""
    code, out, lines = run(capsys, *arguments)
    assert (code, out, len(lines)) == (2, "", 1), lines
    assert lines[0].startswith("changeover: ")
    assert words in lines[0]


def test_an_etcd_that_does_not_answer_is_one_line_and_exit_1(capsys: Captured) -> None:
    """Within three seconds, with the cure, without a traceback."""
    code, out, lines = run(capsys, "status", "--etcd", "http://127.0.0.1:1")
    assert (code, out, len(lines)) == (1, "", 1), lines
    assert "no etcd answers at http://127.0.0.1:1 within 3 s" in lines[0]


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"agent", "demo"}))
def test_every_verb_helps(capsys: Captured, verb: str) -> None:
    """With what it does; and with examples, unless it only holds further verbs."""
    code, out, lines = run(capsys, verb, "--help")
    assert (code, lines) == (0, [])
    assert "Examples:" in out or "Commands:" in out


def test_verbs_are_listed_without_importing_any(capsys: Captured) -> None:
    """The table says it all."""
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(line in out for _, _, line in VERBS.values())
    assert isinstance(cli, Verbs)


def test_the_command_line_starts_without_what_it_does_not_need() -> None:
    """No torch, no gRPC, no rich for a line of help."""
    script = (
        "import sys; import controlplane.cli, controlplane.cli.controller, controlplane.cli.acts;"
        "print(sorted({'torch', 'grpc', 'rich', 'jinja2'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root
    )
    assert ran.stdout.strip() == "[]"
