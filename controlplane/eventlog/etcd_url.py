"""Where etcd is and how it is spoken to: URLs, addresses and TLS files. No gRPC in here."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from controlplane.eventlog.errors import StoreUnavailable


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files: the authority that signed the server, our certificate, and its key.

    `server_name` is what the server's certificate must be valid for, where that is not its host.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return authority, certificate and key, each None where no file is named.

        Raises:
            ValueError: a file cannot be read.
        """
        try:
            ca, cert, key = (
                Path(name).read_bytes() if name else None for name in (self.ca, self.cert, self.key)
            )
        except OSError as error:
            msg = f"TLS file {error.filename!r} cannot be read: {error.strerror}"
            raise ValueError(msg) from error
        return ca, cert, key


class Endpoints(msgspec.Struct, frozen=True):
    """Where etcd listens: `host:port` pairs and whether TLS is spoken."""

    hosts: tuple[tuple[str, int], ...]
    tls: bool

    def __str__(self) -> str:
        """Name the servers as messages do."""
        return "etcd at " + ",".join(f"{host}:{port}" for host, port in self.hosts)


def parse_url(url: str) -> Endpoints:
    """Read `http://host:port[,host:port...]` or `https://...`; the port defaults to 2379.

    Raises:
        ValueError: not such a URL; the message is fit for an operator.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("http", "https"):
        msg = f"etcd URL {url!r}: expected http://host:port[,host:port] or https://..."
        raise ValueError(msg)
    hosts = tuple(_host_port(url, part) for part in rest.rstrip("/").split(","))
    return Endpoints(hosts, tls=scheme == "https")


def _host_port(url: str, part: str) -> tuple[str, int]:
    try:
        split = urlsplit(f"//{part}")
        host, port = split.hostname, split.port or 2379
    except ValueError:
        host, port = None, 0
    if not host or "/" in part or "@" in part:
        msg = f"etcd URL {url!r}: {part!r} is not host:port"
        raise ValueError(msg)
    return host, port


def resolve(endpoints: Endpoints) -> str:
    """Return one gRPC target for all endpoints, which must not mix IPv4 and IPv6."""
    found: list[tuple[socket.AddressFamily, str, int]] = []
    for host, port in endpoints.hosts:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            msg = f"{endpoints}: the host name {host!r} cannot be resolved: {error.strerror}"
            raise StoreUnavailable(msg) from error
        infos.sort(key=lambda info: info[0] != socket.AF_INET)
        found.append((infos[0][0], str(infos[0][4][0]), port))
    families = {family for family, _, _ in found}
    if len(families) > 1:
        msg = f"{endpoints}: addresses of both IPv4 and IPv6; name them all in one kind"
        raise ValueError(msg)
    if families == {socket.AF_INET}:
        return "ipv4:" + ",".join(f"{host}:{port}" for _, host, port in found)
    return "ipv6:" + ",".join(f"[{host}]:{port}" for _, host, port in found)
