"""Finding an etcd program and bringing one: versions, digests, and what is said when it fails."""

import hashlib
import io
import os
import platform
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane import etcd_server
from controlplane.etcd_binary import (
    RELEASE,
    RELEASES_VARIABLE,
    EtcdMissing,
    ensure_etcd,
    find_etcd,
)

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the archives that these tests make are for Linux on amd64 or arm64",
)


def script(version: str) -> bytes:
    """A program that says it is an etcd of some version."""
    return f"#!/bin/sh\necho 'etcd Version: {version}'\n".encode()


def put_program(folder: Path, version: str) -> Path:
    """Put such a program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "etcd"
    path.write_bytes(script(version))
    path.chmod(0o755)
    return path


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but a folder, so that neither apt nor an etcd is found."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    return tmp_path


@pytest.fixture
def mirror(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A web server of our own that release archives are fetched from; its folder."""
    folder = bare / "mirror"
    release = folder / f"v{RELEASE}"
    release.mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(RELEASES_VARIABLE, f"http://127.0.0.1:{server.server_port}")
    yield release
    server.shutdown()
    server.server_close()
    thread.join()


def put_release(release: Path, version: str, digest: str = "") -> None:
    """Publish an archive with a program of some version in it."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    name = f"etcd-v{RELEASE}-linux-{machine}"
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        member = tarfile.TarInfo(f"{name}/etcd")
        member.size = len(script(version))
        tar.addfile(member, io.BytesIO(script(version)))
    raw = held.getvalue()
    (release / f"{name}.tar.gz").write_bytes(raw)
    digest = digest or hashlib.sha256(raw).hexdigest()
    (release / "SHA256SUMS").write_text(f"{digest}  {name}.tar.gz\n")


def test_a_good_one_on_path_is_taken(bare: Path) -> None:
    """An etcd on PATH that is new enough is used as it is."""
    path = put_program(bare / "path", "3.5.16")

    found = ensure_etcd(bare / "folder")

    assert (found.path, found.version, found.warning) == (path, "3.5.16", "")
    assert not (bare / "folder").exists()


def test_a_good_one_at_hand_beats_an_old_one_on_path(bare: Path) -> None:
    """An etcd in the folder is used where the one on PATH is too old to be good."""
    put_program(bare / "path", "3.4.23")
    kept = put_program(bare / "folder" / "bin", "3.5.13")

    assert find_etcd(bare / "folder").path == kept


def test_an_old_one_is_better_than_none(mirror: Path, bare: Path) -> None:
    """Where nothing better can be brought, an old etcd is used, with its warning."""
    put_program(bare / "path", "3.4.23")

    found = ensure_etcd(bare / "folder")

    assert found.version == "3.4.23"
    assert "3.4.23" in found.warning


def test_one_that_loses_data_is_refused(bare: Path) -> None:
    """An etcd that may lose data is named and refused, except for a demo."""
    put_program(bare / "path", "3.5.1")

    with pytest.raises(EtcdMissing, match="may lose data"):
        find_etcd(bare / "folder")
    assert "demo" in find_etcd(bare / "folder", demo=True).warning


def test_a_release_is_brought(mirror: Path, bare: Path) -> None:
    """Without apt the release archive is fetched, checked and unpacked; the second time is free."""
    put_release(mirror, "3.5.16")

    first = ensure_etcd(bare / "folder")
    for file in mirror.iterdir():
        file.unlink()
    second = ensure_etcd(bare / "folder")

    assert first == second
    assert first.path == bare / "folder" / "bin" / "etcd"
    assert os.access(first.path, os.X_OK)
    assert [path.name for path in (bare / "folder").iterdir()] == ["bin"]


def test_a_relative_folder_is_enough(
    mirror: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder named relative to the working directory is where the program ends up."""
    put_release(mirror, "3.5.16")
    monkeypatch.chdir(bare)

    assert ensure_etcd(Path("folder")).path == bare / "folder" / "bin" / "etcd"


def test_a_tampered_release_is_refused(mirror: Path, bare: Path) -> None:
    """An archive without its published digest is not unpacked."""
    put_release(mirror, "3.5.16", digest="0" * 64)

    with pytest.raises(EtcdMissing, match="published digest"):
        ensure_etcd(bare / "folder")

    assert list((bare / "folder").iterdir()) == []


def test_a_release_of_a_bad_version_is_refused(mirror: Path, bare: Path) -> None:
    """What was brought is asked for its version before it is kept."""
    put_release(mirror, "3.5.2")

    with pytest.raises(EtcdMissing, match="may lose data"):
        ensure_etcd(bare / "folder")

    assert list((bare / "folder").iterdir()) == []


@pytest.mark.usefixtures("mirror")
def test_the_command_says_what_each_way_met(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When nothing can be had, one line says why for each way, and the exit code is 1."""
    code = etcd_server.main(["--fetch", str(bare / "folder")])

    said = capsys.readouterr().err
    assert code == 1
    assert said.count("\n") == 1
    for part in (
        "none on PATH",
        "apt: this machine has no apt",
        "release: ",
        "cannot be fetched",
        "pip: ",
    ):
        assert part in said
