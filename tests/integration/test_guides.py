"""The guides, followed from a fresh clone as a new user would: each command, in order, as printed.

What is changed in a command is what a reader would change: an address, the name of a run, and a
job of eight machines becomes one of two, since all of them are here. The operator's guide, the
postmortem guide and the page for capacity planners have tests of their own, in every run:
test_operating.py and test_capacity_page.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.etcd_server import EtcdServer

pytestmark = [pytest.mark.soak, pytest.mark.etcd, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
DEMO_S = 400.0


def blocks(document: str, language: str = "sh") -> list[str]:
    """The code blocks of a document, without the indentation of a list around them."""
    text = (ROOT / document).read_text("utf-8")
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [
        "\n".join(line.removeprefix(indent) for line in block.splitlines())
        for indent, block in found
    ]


def commands(document: str) -> list[str]:
    """The commands of a document in order, each whole, without its comment."""
    joined = "\n".join(blocks(document)).replace("\\\n", " ")
    lines = [line.partition(" #")[0].strip() for line in joined.splitlines()]
    return [line for line in lines if line]


class Reader:
    """Somebody at a shell in a fresh clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CHANGEOVER_", "PYTEST_"))}
        for name in ("VIRTUAL_ENV", "PYTHONPATH"):
            kept.pop(name, None)
        self.environment = kept
        self.running: list[subprocess.Popen[str]] = []
        self.ran: list[str] = []

    def run(self, line: str, timeout_s: float = PATIENCE_S) -> str:
        """Type a command, and read what it says; it must hold."""
        if self._is_of_the_shell(line):
            return ""
        self.ran.append(line)
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def start(self, line: str, name: str) -> subprocess.Popen[str]:
        """Type a command into another terminal, and leave it running; it writes to `name`.log."""
        self.ran.append(line)
        with (self.folder / f"{name}.log").open("w") as sink:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                text=True,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def glance(self, line: str, name: str) -> str:
        """Watch something until it has shown a picture, then press Ctrl-C."""
        process = self.start(line, name)
        until(lambda: bool(self.said(name)), f"a picture of {line}")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 130, f"{line}: {self.said(name)}"
        return self.said(name)

    def said(self, name: str) -> str:
        """What a command in another terminal wrote so far."""
        return (self.folder / f"{name}.log").read_text("utf-8")

    def close(self) -> None:
        """End what still runs, with all its children."""
        for process in self.running:
            for how, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
                if process.poll() is None:
                    os.killpg(process.pid, how)
                    try:
                        process.wait(wait_s)
                    except subprocess.TimeoutExpired:
                        continue

    def _is_of_the_shell(self, line: str) -> bool:
        """Do what a shell does to itself: a later command sees it."""
        words = shlex.split(line)
        if words[0] == "export":
            self.environment |= dict(word.split("=", 1) for word in words[1:])
        elif words[:2] == [".", ".venv/bin/activate"]:
            found = self.folder / ".venv" / "bin"
            assert (found / "activate").is_file(), "there is no environment to activate"
            self.environment["PATH"] = f"{found}{os.pathsep}{self.environment['PATH']}"
        else:
            return False
        return True


def until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    give_up_at_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < give_up_at_s, f"not within {patience_s:.0f} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `git clone` gives of the last commit, and what the first command of README makes.

    A run that is done in pieces names the folder of its one clone in `READERS_CLONE`.
    """
    kept = os.environ.get("READERS_CLONE")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("reader") / "changeover"
    if folder.is_dir():
        return folder
    asked = ["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(folder)]
    subprocess.run(asked, check=True, timeout=PATIENCE_S)
    first = commands("README.md")[0]
    assert first == "make env"
    Reader(folder).run(first, timeout_s=1200)
    return folder


@pytest.fixture
def reader(clone: Path) -> Iterator[Reader]:
    """A reader with a shell of their own."""
    somebody = Reader(clone)
    yield somebody
    somebody.close()


def test_the_readme_and_the_quick_start(reader: Reader) -> None:
    """The demo, a look at it from another terminal while it runs, and its log afterwards."""
    make_env, make_demo, *looks = commands("README.md")
    assert (make_env, make_demo) == ("make env", "make demo")
    demo = reader.start(make_demo, "demo")
    until(lambda: "from another terminal" in reader.said("demo"), "the demo's address", DEMO_S)
    url, fleet = re.findall(r"--etcd (\S+) --fleet (\S+)", reader.said("demo"))[0]
    until(lambda: "TransitionFinished" in log_of(reader, url, fleet), "a launch", DEMO_S)
    for number, line in enumerate(looks):
        ours = line.replace("http://127.0.0.1:PORT", url).replace("=NAME", f"={fleet}")
        watches = "--watch" in ours or ours.endswith("-f")
        told = reader.glance(ours, f"look-{number}") if watches else reader.run(ours)
        assert told or ours.startswith("export"), ours
    assert demo.wait(DEMO_S) == 0, reader.said("demo")[-4000:]

    quick = commands("docs/index.md")
    here = quick.index(". .venv/bin/activate")
    assert quick[:here] == ["make env", "make demo"]
    few = next(n for n, line in enumerate(quick) if "changeover controller" in line)
    for line in quick[here:few]:
        reader.run(line)
    assert few - here == 5
    assert (reader.folder / "demo.html").stat().st_size > 10_000
    assert json.loads((reader.folder / "demo.trace.json").read_text("utf-8"))["traceEvents"]


def log_of(reader: Reader, url: str, fleet: str) -> str:
    """The last entries of the demo's log; nothing while its store is not there yet."""
    done = subprocess.run(
        [".venv/bin/changeover", "log", "tail", "--etcd", url, "--fleet", fleet],
        cwd=reader.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return done.stdout


TRAIN = """
import types
import torch
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
args = types.SimpleNamespace(steps=100_000)
loss_fn = torch.nn.functional.mse_loss


def build():
    model = torch.nn.Linear(8, 8)
    return model, torch.optim.AdamW(model.parameters())


class corpus:
    @staticmethod
    def batch(step, index, size):
        chance = torch.Generator().manual_seed(1000 * step + index)
        return torch.randn(4, 8, generator=chance), torch.randn(4, 8, generator=chance)


def evaluate(model):
    return model
"""
"""What the loop of the guide calls by name and leaves to its reader."""


def test_a_few_machines_run_the_loop_of_the_guide(
    reader: Reader, own_etcd: EtcdServer, tmp_path: Path
) -> None:
    """Controller, secret, job, agents: they train; one is killed, its standby takes the place."""
    loop, line, final, phases = blocks("docs/training-loop.md", "python")[:4]
    within = (line + "\n" + phases).splitlines()
    indented = "".join(f"    {line}\n" for line in within if "import" not in line)
    imports = "".join(f"{line}\n" for line in within if "import" in line)
    script = TRAIN + imports + loop + "\n" + indented + final
    (reader.folder / "train.py").write_text(script, "utf-8")
    port = free_port()
    here = {
        "http://etcd-0:2379": own_etcd.url,
        "127.0.0.1:8787": f"127.0.0.1:{port}",
        "dp=8": "dp=2",
        "10.0.0.10": "127.0.0.1",
    }
    quick = commands("docs/index.md")
    few = quick[next(n for n, line in enumerate(quick) if "changeover controller" in line) :]
    reader.run(". .venv/bin/activate")
    agents: dict[str, subprocess.Popen[str]] = {}
    for number, line in enumerate(few):
        ours = moved(line, here)
        if "controller" in ours:
            reader.start(ours, "controller")
            until(lambda: "LeaderElected" in reader.said("controller"), "a leader")
        elif " agent " in ours:
            for node in ("n0", "n1", "n2"):
                agents[node] = reader.start(ours.replace("n0", node), node)
        elif "--watch" in ours:
            until(lambda: has_begun(reader), "training and a warm standby")
            assert "run1" in reader.glance(ours, f"few-{number}")
        else:
            reader.run(ours)

    os.killpg(agents["n1"].pid, signal.SIGKILL)
    until(lambda: job_of(reader)["epoch"] == 2, "the standby in the place of n1")
    reader.run("changeover explain n1")
    reader.run("changeover job stop run1")
    for node in ("n0", "n2"):
        assert agents[node].wait(PATIENCE_S) == 0, reader.said(node)
    assert (reader.folder / "final.pt").exists()
    logs = [path.read_text("utf-8") for path in (reader.folder / "run1").glob("worker-*.log")]
    assert sum(text.count("\nstep 0\n") for text in logs) == 1, logs
    assert [line.split()[1] for line in reader.ran if line.startswith("changeover")][:2] == [
        "controller",
        "job",
    ]


def status_of(reader: Reader) -> dict[str, Any]:
    """The fleet as its reader would see it."""
    found = json.loads(reader.run("changeover status --json"))
    assert isinstance(found, dict)
    return found


def job_of(reader: Reader) -> dict[str, Any]:
    """The job of the guide."""
    (job,) = status_of(reader)["jobs"]
    assert isinstance(job, dict)
    return job


def has_begun(reader: Reader) -> bool:
    """Whether the job trains, with somebody warm beside it."""
    job = job_of(reader)
    return (
        job["epoch"] == 1
        and job["step"] is not None
        and bool(job["standbys"])
        and (status_of(reader)["nodes_by_state"].get("standby", 0) == 1)
    )


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_guide_to_embedding(reader: Reader, own_etcd: EtcdServer) -> None:
    """Its program leads a real store; its rule is tested as it says; its settings are read."""
    program, shape, at_the_desk = blocks("docs/embed.md", "python")
    reader.run(". .venv/bin/activate")
    port = free_port()
    ours = program.replace("http://etcd-0:2379", own_etcd.url).replace("8787", str(port))
    (reader.folder / "embedded.py").write_text(ours, "utf-8")
    embedded = reader.start("python embedded.py", "embedded")
    reader.environment |= {"CHANGEOVER_ETCD": own_etcd.url, "CHANGEOVER_FLEET": "lab"}
    until(lambda: bool(status_of(reader)["jobs"]), "the job that it declares")
    assert status_of(reader)["leader"] == "sched-0"
    os.killpg(embedded.pid, signal.SIGINT)
    embedded.wait(20)

    rules = reader.folder / "mytool"
    rules.mkdir()
    (rules / "__init__.py").write_text("", "utf-8")
    body = "from embed_scheduler import rest_the_tired\n"
    (rules / "rules.py").write_text(body, "utf-8")
    assert "rest_the_tired" in shape
    desk = f"from mytool.rules import rest_the_tired\n{at_the_desk}\nprint('held')\n"
    (reader.folder / "desk.py").write_text(desk, "utf-8")
    reader.environment["PYTHONPATH"] = f"{reader.folder / 'examples'}:{reader.folder}"
    assert reader.run("python desk.py") == "held\n"
    assert "trains on m3" in reader.run("python examples/embed_scheduler.py")

    (settings,) = blocks("docs/embed.md", "toml")
    (reader.folder / "plugins.toml").write_text(settings, "utf-8")
    done = subprocess.run(
        ["changeover", "status", "--config", "plugins.toml"],
        cwd=reader.folder,
        env=reader.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2, "a name that is not installed is refused when settings are read"
    assert "plugins" in done.stderr


def test_the_guide_to_security(reader: Reader, tmp_path: Path) -> None:
    """Certificates, an etcd that asks for them, users; each process may its part and no more."""
    reader.run(". .venv/bin/activate")
    reader.environment["PATH"] += f"{os.pathsep}{reader.folder / '.venv' / 'etcd' / 'bin'}"
    port, peers = free_port(), free_port()
    set_up, processes = (block.replace("\\\n", " ").splitlines() for block in blocks(SECURITY))
    here = {"etcd.example:2379": f"localhost:{port}", "0.0.0.0:2379": f"127.0.0.1:{port}"}
    private = f"--data-dir {tmp_path} --listen-peer-urls http://127.0.0.1:{peers}"
    for line in set_up[1:]:  # the environment of the clone has what the first would install
        ours = moved(line.partition(" #")[0], here | {"etcd.example": "localhost"})
        if ours.startswith("etcd "):
            reader.start(f"{ours} {private}", "etcd")
            until(lambda: "ready to serve client" in reader.said("etcd"), "etcd")
        else:
            reader.run(ours)

    (somebody := Reader(reader.folder / "pki")).environment = dict(reader.environment)
    try:
        controller, _, operator = (moved(line, here) for line in processes)
        somebody.start(f"{controller} --fleet lab", "controller")
        until(lambda: "LeaderElected" in somebody.said("controller"), "a leader")
        somebody.run(operator)
        somebody.environment |= {
            "CHANGEOVER_ETCD": f"https://localhost:{port}",
            "CHANGEOVER_FLEET": "lab",
        }
        assert "paused by" in somebody.run("changeover pause --as ann && changeover doctor || true")
        assert status_of(somebody)["paused_by"] == "ann"
        node = {"CERT": "node-n0.pem", "KEY": "node-n0.key"}
        somebody.environment |= {f"CHANGEOVER_ETCD_{name}": file for name, file in node.items()}
        refused = somebody.run("changeover resume 2>&1 || true")
        assert "permission denied" in refused
    finally:
        somebody.close()


SECURITY = "docs/operate/security.md"


def moved(line: str, here: dict[str, str]) -> str:
    """A command with the addresses of this machine."""
    for theirs, ours in here.items():
        line = line.replace(theirs, ours)
    return line


@pytest.mark.parametrize("layout", ["--nodes 3 --standbys 1", "--layout pp=3,dp=2"])
def test_the_demos_that_the_training_guide_names(reader: Reader, layout: str) -> None:
    """As printed; each ends with its proof, without which it would end with 1."""
    text = (ROOT / "docs" / "training-loop.md").read_text("utf-8")
    line = f'make demo ARGS="{layout}"'
    assert line in " ".join(text.split())

    before = set(reader.folder.glob("runs/*/report.html"))

    reader.run(line, timeout_s=DEMO_S)

    (page,) = set(reader.folder.glob("runs/*/report.html")) - before
    assert "bit for bit" in page.read_text("utf-8")
