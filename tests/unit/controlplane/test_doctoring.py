"""The doctor: each thing that can be wrong is brought about, is told, and has its cure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from controlplane import doctoring
from controlplane.config import Settings
from controlplane.doctoring import Finding, Grade, examine
from controlplane.embedding import ControlPlane, control_plane
from controlplane.eventlog import Batch, EventLog, PermissionDenied
from controlplane.eventlog.memory import MemoryStore
from controlplane.eventlog.store import RangeResult, ServerInfo
from controlplane.term import unix_ms
from statemachine import events as e
from statemachine.codec import encode_recorded
from statemachine.ids import Epoch, Incarnation, JobId, NodeId, Position, Role, Slot
from statemachine.vitals import Vitals, encode_vitals

MIB = 2**20


class Server(MemoryStore):
    """A store that says what a server would, and lets read what a user may."""

    def __init__(self) -> None:
        super().__init__()
        self.version, self.db_bytes, self.member, self.leader = "3.5.16", MIB, 1, 1
        self.denied = b""

    async def server_info(self) -> ServerInfo:
        """As told."""
        info = await super().server_info()
        return ServerInfo(self.version, self.db_bytes, self.member, self.leader, info.revision)

    async def range(self, start: bytes, *more: Any, **options: Any) -> RangeResult:
        """Not for everybody."""
        if self.denied and self.denied in start:
            raise PermissionDenied("etcdserver: permission denied")
        return await super().range(start, *more, **options)


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Server, EventLog, ControlPlane]]:
    """A fleet that is led, with nobody in it."""
    store = Server()
    log = EventLog(store, "lab")
    with anyio.fail_after(20):
        async with control_plane(log=log) as plane:
            await plane.until_leading()
            yield store, log, plane


async def found(log: EventLog | None, settings: Settings | None = None) -> dict[str, Finding]:
    """What the doctor finds, by subject."""
    told = await examine(settings or Settings(fleet="lab"), log, unix_ms())
    assert all(each.cure for each in told if each.grade in (Grade.BAD, Grade.WARNING)), told
    return {each.subject: each for each in told}


async def test_nothing_wrong_is_good() -> None:
    """A fleet that is led, with room: nothing is bad."""
    async with fleet() as led:
        told = await found(led[1])

        assert not [each for each in told.values() if each.grade is Grade.BAD]
        for subject in (
            "etcd",
            "quota",
            "permissions",
            "timeouts",
            "controller",
            "clocks",
            "leases",
        ):
            assert told[subject].grade is Grade.GOOD, told[subject]


@pytest.mark.parametrize(
    ("version", "grade", "words"),
    [
        ("3.5.1", Grade.BAD, "may lose data"),
        ("3.3.27", Grade.BAD, "too old"),
        ("3.5.4", Grade.WARNING, "known faults"),
    ],
)
async def test_a_server_that_may_lose_data_is_told(version: str, grade: Grade, words: str) -> None:
    """With the version to upgrade to."""
    async with fleet() as led:
        led[0].version = version

        etcd = (await found(led[1]))["etcd"]

        assert (etcd.grade, words in etcd.words) == (grade, True), etcd
        assert "3.5.13" in etcd.cure


async def test_a_cluster_without_a_leader_is_told() -> None:
    """Its members are to be brought back."""
    async with fleet() as led:
        led[0].leader = 0

        assert (await found(led[1]))["etcd"].words == "the cluster has no leader"


async def test_a_store_that_fills_up_is_told() -> None:
    """From 60 % of its quota on: a full store refuses leases too."""
    async with fleet() as led:
        led[0].db_bytes = 1300 * MIB

        quota = (await found(led[1]))["quota"]

        assert (quota.grade, "63% of a 2 GiB quota" in quota.words) == (Grade.BAD, True), quota
        assert quota.cure == "changeover log archive DIR --reclaim"


@pytest.mark.parametrize(
    ("key", "what"),
    [(b"/vitals", "vitals"), (b"/snapshot", "snapshots"), (b"/nodes", "live nodes")],
)
async def test_what_a_user_may_not_read_is_told(key: bytes, what: str) -> None:
    """By its name, with the role that lacks."""
    async with fleet() as led:
        led[0].denied = key

        permissions = (await found(led[1]))["permissions"]

        assert permissions.grade is Grade.BAD
        assert f"may not read {what}" in permissions.words
        assert "changeover init" in permissions.cure


async def test_no_store_is_told_and_the_rest_is_looked_at() -> None:
    """The machine can be examined without one."""
    async with fleet():
        told = await found(None)

        assert told["etcd"].grade is Grade.BAD
        assert "CHANGEOVER_ETCD" in told["etcd"].cure
        assert told["package origin"].grade is Grade.GOOD


@pytest.mark.parametrize(
    ("url", "grade"),
    [
        ("http://127.0.0.1:2379", Grade.GOOD),
        ("http://store.example:2379", Grade.WARNING),
        ("https://store.example:2379", Grade.GOOD),
    ],
)
async def test_an_open_way_to_the_store_is_told(url: str, grade: Grade) -> None:
    """Off is fine on loopback only."""
    tls = (await found(None, Settings(fleet="lab", etcd=url)))["TLS"]

    assert tls.grade is grade
    assert ("changeover init" in tls.cure) is (grade is Grade.WARNING)


async def test_timeouts_without_room_are_told() -> None:
    """Those in force, and those that a controller's settings would bring about."""
    async with fleet() as led:
        settings = Settings(fleet="lab", knobs={"renew_interval_s": 7.5})

        told = await examine(settings, led[1], unix_ms())
        tight = [each for each in told if each.subject == "timeouts"]

        assert [each.grade for each in tight] == [Grade.WARNING, Grade.GOOD]
        assert "renew_interval_s 7.5 s, self_fence_s 8 s" in tight[0].words


# --- clocks and leases ------------------------------------------------------------------------


async def with_window(log: EventLog, ended_ms: int) -> None:
    """A node joins, and publishes a window of a second that ended then by its clock."""
    session = await log.join(NodeId("n0"), b"{}", 30.0)
    joined = e.NodeJoined(node=NodeId("n0"), incarnation=session.incarnation, host="h")
    await session.submit(joined, 0)
    vitals = Vitals(
        node=NodeId("n0"),
        incarnation=session.incarnation,
        slot=Slot(-1),
        job=JobId("job"),
        role=Role("only"),
        epoch=Epoch(0),
        last_step=-1,
        window=1,
        started_at_ms=ended_ms - 1000,
        ended_at_ms=ended_ms,
    )
    await session.put_vitals(encode_vitals(vitals))


@pytest.mark.parametrize(
    ("offset_s", "grade", "words"),
    [
        (0.2, Grade.GOOD, ""),
        (-1.5, Grade.GOOD, ""),
        (30.0, Grade.WARNING, "n0 is 30.0 s ahead of this machine"),
        (-60.0, Grade.WARNING, "the last window of n0 ended 60.0 s ago by our clock"),
    ],
)
async def test_a_clock_that_is_off_is_told(offset_s: float, grade: Grade, words: str) -> None:
    """Ahead or behind; of one that is behind, that it may hang instead."""
    async with fleet() as led:
        now_ms = unix_ms()
        await with_window(led[1], now_ms + round(offset_s * 1000))

        told = await examine(Settings(fleet="lab"), led[1], now_ms)
        (clocks,) = [each for each in told if each.subject == "clocks"]

        assert (clocks.grade, words in clocks.words) == (grade, True), clocks
        assert ("chrony" in clocks.cure) is (grade is Grade.WARNING)


async def test_a_log_ahead_of_this_machine_is_told() -> None:
    """The controller's clock, or ours."""
    async with fleet() as led:
        now_ms = unix_ms()

        told = await examine(Settings(fleet="lab"), led[1], now_ms - 5_000)
        (clocks,) = [each for each in told if each.subject == "clocks"]

        assert clocks.grade is Grade.WARNING
        assert "s ahead of this machine" in clocks.words


async def test_a_lease_that_the_log_does_not_know_is_told() -> None:
    """Somebody holds one who never said that it joined."""
    async with fleet() as led:
        await led[1].join(NodeId("ghost"), b"{}", 30.0)

        leases = (await found(led[1]))["leases"]

        assert leases.grade is Grade.WARNING
        assert "left over: ghost/1" in leases.words
        assert "TTL" in leases.cure


async def test_a_node_of_the_log_without_a_lease_is_told() -> None:
    """Nobody has declared it lost yet: the controller that would is away."""
    store = Server()
    log = EventLog(store, "lab")
    leadership = await log.campaign("c0", 30.0)
    joined = e.NodeJoined(node=NodeId("n0"), incarnation=Incarnation(1), host="h")
    entry = e.Recorded(position=Position(1), at_ms=1, writer="n0", event=joined)
    await leadership.append(Batch(after=Position(0), entries=(encode_recorded(entry),)))

    leases = (await found(log))["leases"]

    assert leases.grade is Grade.WARNING
    assert "without a lease: n0/1" in leases.words


async def test_a_fleet_that_nobody_leads_is_told() -> None:
    """Facts wait and nothing is repaired."""
    told = await found(EventLog(Server(), "lab"))

    assert told["controller"].grade is Grade.BAD
    assert "changeover controller" in told["controller"].cure
    assert told["leases"].grade is Grade.WARNING


async def test_a_pause_is_told() -> None:
    """Somebody may have forgotten it."""
    async with fleet() as led:
        await led[2].act("ada", e.DecisionsPaused(by="ada"))

        controller = (await found(led[1]))["controller"]

        assert (controller.grade, controller.cure) == (Grade.WARNING, "changeover resume")


# --- this machine -----------------------------------------------------------------------------

DRIVERS = {
    "well": (
        "#!/bin/sh\necho 'NVIDIA H200, 570.1'\necho 'NVIDIA H200, 570.1'\n",
        Grade.GOOD,
        "2 x",
    ),
    "lost a GPU": ("#!/bin/sh\necho 'No devices' >&2\nexit 9\n", Grade.BAD, "exited with 9"),
    "hangs": ("#!/bin/sh\nexec sleep 60\n", Grade.BAD, "said nothing"),
}


@pytest.mark.parametrize("how", DRIVERS)
async def test_a_driver_that_does_not_answer_is_told(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wedged driver must not hang who asks; it is a node to be drained."""
    script, grade, words = DRIVERS[how]
    program = tmp_path / "nvidia-smi"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(doctoring, "PATIENCE_S", 1.0)

    with anyio.fail_after(10):
        gpus = (await found(None))["GPUs"]

    assert (gpus.grade, words in gpus.words) == (grade, True), gpus
    assert ("drain" in gpus.cure) is (grade is Grade.BAD)


async def test_a_machine_without_a_driver_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is neither good nor bad."""
    monkeypatch.setenv("PATH", "")

    assert (await found(None))["GPUs"].grade is Grade.UNKNOWN


def test_a_package_of_somebody_else_with_our_name_is_told(tmp_path: Path) -> None:
    """Names as short as ours are taken by others, or by a folder that one happens to stand in."""
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("")

    done = subprocess.run(
        [sys.executable, "-m", "controlplane", "doctor", "--json", "--etcd", "http://127.0.0.1:1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told = {each["subject"]: each for each in json.loads(done.stdout)}

    assert done.returncode == 1
    assert told["package origin"]["grade"] == "bad"
    assert str(tmp_path) in told["package origin"]["words"]
    assert "virtual environment" in told["package origin"]["cure"]


async def test_a_machine_that_cannot_train_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's laptop needs no torch; a training node is told what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    torch = doctoring.torch_facts()

    assert torch.grade is Grade.UNKNOWN
    assert "changeover[worker]" in torch.words
