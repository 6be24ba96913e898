"""An etcd that does not answer: whose fault that is, and what to do, in one line.

Certificates, servers and handshakes are real; the authority is that of `changeover init`.
"""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

from controlplane import certificates
from controlplane.certificates import Authority
from controlplane.etcd_server import EtcdServer, free_port
from controlplane.eventlog.etcd_url import TlsFiles, parse_url
from controlplane.eventlog.silence import MUTE, NOBODY, why_silent
from tests.integration.controlplane.test_operating import ROOT, offline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.etcd_binary import EtcdBinary

pytestmark = pytest.mark.etcd


class Servers(Struct):
    """An etcd whose certificate is good, one whose is not, and the folders of certificates."""

    good: str
    expired: str
    folder: Path

    def files(self, kind: str) -> TlsFiles:
        """What the administrator shows: `good`, `late` (expired) or `other` (another authority)."""
        where = self.folder / kind
        return TlsFiles(
            ca=str(self.folder / "good" / "ca.pem"),
            cert=str(where / "root.pem"),
            key=str(where / "root.key"),
        )


def made(folder: Path) -> None:
    """Three folders: `good`, and by its authority `late`; and `other`."""
    Authority(folder / "good", days=2).make([])
    Authority(folder / "other", days=2).make([])
    (folder / "late").mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(folder / "good" / name, folder / "late" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_CLOCK_SKEW", dt.timedelta(days=9))
        Authority(folder / "late", days=-1).make([])


@pytest.fixture(scope="module")
def servers(etcd_binary: EtcdBinary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Both run."""
    folder = tmp_path_factory.mktemp("pki")
    made(folder)
    both = [
        EtcdServer(
            etcd_binary, tmp_path_factory.mktemp(kind), certificates=folder / kind, durable=False
        )
        for kind in ("good", "late")
    ]
    try:
        for server in both:
            server.start_blocking()
        yield Servers(both[0].url, both[1].url, folder)
    finally:
        for server in both:
            server.stop_blocking()


def test_a_certificate_of_ours_that_expired_is_named(servers: Servers) -> None:
    """The server says so, and we repeat it."""
    found = why_silent(parse_url(servers.good), servers.files("late"))

    assert found.words == "our own certificate (--cert) has expired, says etcd"
    assert "changeover init" in found.cure


def test_a_certificate_of_etcds_that_expired_is_named(servers: Servers) -> None:
    """It is etcd's, not ours: the cure is on its machine."""
    found = why_silent(parse_url(servers.expired), servers.files("good"))

    assert found.words == "etcd's own certificate has expired"
    assert found.cure.startswith("on its machine")


def test_each_other_fault_of_tls_has_its_words(servers: Servers, tmp_path: Path) -> None:
    """Wrong authority on either side, no certificate, a wrong name, half a pair, no PEM at all."""
    good, endpoints = servers.files("good"), parse_url(servers.good)
    theirs = servers.files("other")
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    asked = {
        "refuses our certificate": theirs,
        "an authority that we do not know": TlsFiles(
            ca=str(servers.folder / "other" / "ca.pem"), cert=good.cert, key=good.key
        ),
        "asks for a certificate and we show none": TlsFiles(ca=good.ca),
        "is not one for elsewhere": TlsFiles(good.ca, good.cert, good.key, "elsewhere"),
        "are no certificate with its key": TlsFiles(ca=good.ca, cert=good.cert, key=theirs.key),
        "holds no certificate": TlsFiles(ca=str(empty), cert=good.cert, key=good.key),
    }
    for words, files in asked.items():
        found = why_silent(endpoints, files)
        assert words in found.words, (words, found)
        assert found.is_of_tls
        assert found.cure


def test_tls_and_no_tls_are_told_apart(servers: Servers, etcd: EtcdServer) -> None:
    """Either way round; and a server that speaks as we do is not blamed for TLS."""
    plain = servers.good.replace("https", "http")
    private = etcd.url.replace("http", "https")

    assert why_silent(parse_url(plain), None).words == "it speaks TLS only"
    assert why_silent(parse_url(private), None).words.endswith("it speaks without TLS")
    assert why_silent(parse_url(servers.good), servers.files("good")) is MUTE
    assert why_silent(parse_url(etcd.url), None) is MUTE
    assert why_silent(parse_url(f"http://127.0.0.1:{free_port()}"), None) is NOBODY


def test_one_server_of_several_explains_the_silence(servers: Servers) -> None:
    """Where one is off and one refuses us, the refusal is what can be mended."""
    several = f"https://127.0.0.1:{free_port()},{servers.good.removeprefix('https://')}"

    assert why_silent(parse_url(several), servers.files("late")).is_of_tls


def test_a_verb_and_a_doctor_say_it_in_one_line(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, no traceback; a doctor files it under TLS, with the cure."""
    monkeypatch.setattr("controlplane.server.OPEN_S", 1.0)
    late = servers.files("late")
    where = ["--etcd", servers.good, "--ca", late.ca, "--cert", late.cert, "--key", late.key]

    status = offline("status", *where)
    doctor = offline("doctor", *where)

    assert (status.returncode, status.stderr.count("\n")) == (1, 1)
    assert "our own certificate (--cert) has expired" in status.stderr
    assert doctor.returncode == 1
    assert "bad      TLS             our own certificate (--cert) has expired" in doctor.stdout
    assert "Traceback" not in status.stderr + doctor.stderr


def test_an_agent_that_waits_for_etcd_says_why(servers: Servers, tmp_path: Path) -> None:
    """It goes on waiting, since certificates are renewed; whoever looks at its log knows whose."""
    late = servers.files("late")
    command = [
        sys.executable,
        "-m",
        "controlplane",
        "agent",
        "--etcd",
        servers.good,
        "--ca",
        late.ca,
    ]
    command += [
        "--cert",
        late.cert,
        "--key",
        late.key,
        "--fleet",
        "f",
        "--node",
        "n0",
        "--job",
        "j",
    ]
    command += ["--run-dir", str(tmp_path), "--", "true"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        try:
            said = ""
            while "waiting for the store" not in said and (line := agent.stderr.readline()):
                said += line
        finally:
            agent.terminate()

    assert "our own certificate (--cert) has expired, says etcd" in said
