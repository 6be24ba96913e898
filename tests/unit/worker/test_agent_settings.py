"""The agent's command line: what it takes, and the one line with which it refuses."""

import sys
from pathlib import Path

import pytest

from statemachine.errors import UsageError
from statemachine.ids import JobId
from worker.agent import main
from worker.agent_settings import AgentSettings, parse_arguments

GOOD = ("--node", "n0", "--fleet", "lab", "--etcd", "http://127.0.0.1:2379", "--job", "gpt")


def parse(tmp_path: Path, *more: str, command: tuple[str, ...] = ("--", "true")) -> AgentSettings:
    """Parse a good line with additions."""
    return parse_arguments([*GOOD, "--run-dir", str(tmp_path / "run"), *more, *command])


def test_a_good_line_is_taken(tmp_path: Path) -> None:
    """Names, command and defaults end where they belong, and the run directory is made."""
    settings = parse(
        tmp_path, "--label", "rack=7", command=("--", "python", "t.py", "--steps", "4")
    )

    assert (settings.node, settings.fleet, settings.job) == ("n0", "lab", "gpt")
    assert settings.command == (sys.executable, "t.py", "--steps", "4")
    assert settings.labels == {"rack": "7"}
    assert settings.log_path == tmp_path / "run" / "worker-n0.log"
    assert settings.tls is None
    assert not settings.rejoin


def test_words_behind_the_dashes_are_the_commands_own(tmp_path: Path) -> None:
    """An option of the training command is not taken for one of the agent's."""
    settings = parse(tmp_path, command=("--", "train", "--node", "x", "--rejoin"))

    assert settings.command == ("train", "--node", "x", "--rejoin")
    assert settings.node == "n0"


def test_a_node_serves_another_job_and_comes_back(tmp_path: Path) -> None:
    """Assigned to another job, a node runs that job's command, and still knows its own."""
    first = parse(
        tmp_path, "--also", "other=python o.py --steps 9", command=("--", "python", "t.py")
    )
    lent = first.serving(JobId("other"))

    assert (lent.job, lent.command) == ("other", (sys.executable, "o.py", "--steps", "9"))
    assert lent.also == {"gpt": (sys.executable, "t.py")}
    assert lent.serving(JobId("gpt")) == first
    assert lent.node == first.node


def test_the_default_secret_is_made_once_for_all_agents(tmp_path: Path) -> None:
    """Agents of one run directory share a secret that nobody else may read."""
    first = parse(tmp_path).secret_path.read_bytes()
    second = parse(tmp_path).secret_path.read_bytes()

    assert first == second
    assert len(first) == 32
    assert (tmp_path / "run" / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["secret"], "no draft is left"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--node", "N0"), "N0"),
        (("--fleet", "a/b"), "a/b"),
        (("--job", ""), "job name"),
        (("--etcd", "127.0.0.1:2379"), "--etcd"),
        (("--lease-ttl-s", "soon"), "--lease-ttl-s"),
        (("--lease-ttl-s", "60"), "lease_ttl_s"),
        (("--abort-deadline-s", "0"), "abort_deadline_s"),
        (("--label", "rack"), "rack"),
        (("--also", "other"), "other"),
        (("--also", "gpt=python t.py"), "job gpt"),
        (("--also", "B/d=python t.py"), "job name"),
        (("--also", "other=python 't.py"), "other"),
        (("--no-such-flag", "1"), "--no-such-flag"),
        (("--patience-s", "-1"), "--patience-s"),
        (("--patience-s", "nan"), "--patience-s"),
        (("--stop-grace-s", "inf"), "--stop-grace-s"),
        (("--host", "999.1.1.1"), "--host '999.1.1.1'"),
        (("--host", "192.0.2.1"), "--host '192.0.2.1'"),
        (("--host", ""), "--host ''"),
        (("--etcd", ""), "CHANGEOVER_ETCD"),
        (("--fleet", ""), "CHANGEOVER_FLEET"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    named: str,
) -> None:
    """Exit code 2 and one line that says which argument is wrong."""
    line = [*GOOD, "--run-dir", str(tmp_path), *arguments, "--", "true"]

    assert main(line) == 2

    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert named in said


def test_no_command_is_refused(tmp_path: Path) -> None:
    """An agent without a training command has nothing to do."""
    with pytest.raises(UsageError, match="no training command"):
        parse(tmp_path, command=("--",))


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """A secret with an open mode is no secret."""
    path = tmp_path / "open"
    path.write_bytes(bytes(32))
    path.chmod(0o644)

    with pytest.raises(UsageError, match="0600"):
        parse(tmp_path, "--secret-file", str(path))


def test_a_secret_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    """A secret that was named is never made up, and a short one is none."""
    with pytest.raises(UsageError, match="--secret-file"):
        parse(tmp_path, "--secret-file", str(tmp_path / "missing"))
    path = tmp_path / "short"
    path.write_bytes(b"123")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="too few"):
        parse(tmp_path, "--secret-file", str(path))


def test_a_run_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A file in the place of the run directory is named."""
    (tmp_path / "run").write_text("a file")

    with pytest.raises(UsageError, match="--run-dir"):
        parse(tmp_path)


def test_store_and_fleet_may_stand_in_the_environment_and_a_flag_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever exported them for the other verbs need not repeat them for the agent."""
    monkeypatch.setenv("CHANGEOVER_ETCD", "http://10.0.0.1:2379")
    monkeypatch.setenv("CHANGEOVER_FLEET", "there")
    line = ["--node", "n0", "--job", "gpt", "--run-dir", str(tmp_path), "--", "true"]

    told = parse_arguments(line)
    both = parse(tmp_path)

    assert (told.etcd, told.fleet) == ("http://10.0.0.1:2379", "there")
    assert (both.etcd, both.fleet) == ("http://127.0.0.1:2379", "lab")


def test_a_level_that_there_is_not_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment is input, too: no traceback, and no agent that says nothing."""
    monkeypatch.setenv("CHANGEOVER_LOG_LEVEL", "loud")

    code = main([*GOOD, "--run-dir", str(tmp_path), "--", "true"])

    assert code == 2
    assert capsys.readouterr().err == (
        "changeover: agent: CHANGEOVER_LOG_LEVEL=loud: "
        "expected one of debug, info, warning, error\n"
    )
