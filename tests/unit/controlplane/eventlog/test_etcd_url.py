"""URLs, addresses, and the files that TLS needs."""

from pathlib import Path

import pytest

from controlplane.eventlog.errors import StoreUnavailable
from controlplane.eventlog.etcd_url import TlsFiles, parse_url, resolve


@pytest.mark.parametrize(
    ("url", "target", "tls"),
    [
        ("http://127.0.0.1:2379", "ipv4:127.0.0.1:2379", False),
        ("http://127.0.0.1", "ipv4:127.0.0.1:2379", False),
        ("https://127.0.0.1:1/", "ipv4:127.0.0.1:1", True),
        ("http://127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2", False),
        ("http://[::1]:5", "ipv6:[::1]:5", False),
    ],
)
def test_a_url_becomes_one_target(url: str, target: str, *, tls: bool) -> None:
    """All endpoints of a URL end in one gRPC target."""
    endpoints = parse_url(url)

    assert (resolve(endpoints), endpoints.tls) == (target, tls)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:2379",
        "ftp://127.0.0.1",
        "http://",
        "http://a:b",
        "http://a,",
        "http://a:99999",
        "http://u:p@a:1",
        "http://a/path",
    ],
)
def test_what_is_no_url_is_named(url: str) -> None:
    """A malformed URL is refused in one line that quotes it."""
    with pytest.raises(ValueError, match="etcd URL") as caught:
        parse_url(url)

    assert repr(url) in str(caught.value)


def test_a_name_that_nobody_knows_is_the_stores_fault() -> None:
    """A host that does not resolve may do so later: it is an unavailable store."""
    with pytest.raises(StoreUnavailable, match="nowhere"):
        resolve(parse_url("http://nowhere.invalid:1"))


def test_mixed_address_kinds_are_refused() -> None:
    """One gRPC target holds one kind of address."""
    with pytest.raises(ValueError, match="IPv4 and IPv6"):
        resolve(parse_url("http://127.0.0.1:1,[::1]:1"))


def test_files_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    """TLS files are optional; one that is named must be there."""
    (tmp_path / "ca.pem").write_bytes(b"ca")

    assert TlsFiles(ca=str(tmp_path / "ca.pem")).read() == (b"ca", None, None)
    with pytest.raises(ValueError, match="missing"):
        TlsFiles(ca=str(tmp_path / "missing.pem")).read()
