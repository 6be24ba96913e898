"""Certificates for a fleet: an authority, etcd's own, and one for each user. Files in one folder.

What belongs here: making them, once; what is there already stays. Whose they are is `access`'.

Theory of operation. The common name of a client's certificate is its user in etcd. The server's has
none: etcd's HTTP gateway speaks with the server's certificate, and would be that user. Keys are
ECDSA on P-256, readable by their owner alone, and written before the certificate that names them,
each whole or not at all; so a certificate that is there has its key. `ca.key` signs whatever it is
asked to: keep it away from the fleet.

    ca.pem, ca.key              the authority
    server.pem, server.key      etcd's
    root.pem, root.key          whoever administers etcd
    NAME.pem, NAME.key          a user's, by the file name that `access` gives it
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controlplane.access import ROOT, User
from controlplane.errors import BadAccess, CertificatesRefused

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LOOPBACK: Final = ("127.0.0.1", "localhost")
"""For what an etcd on this machine is called."""

_CLOCK_SKEW: Final = dt.timedelta(hours=1)


class Authority:
    """A folder of certificates and the authority that signs them.

    Raises, from every method:
        CertificatesRefused: the folder, or what is in it, cannot be used; says why.
    """

    def __init__(self, folder: Path, days: int) -> None:
        """`days` is how long what is made from now on is valid. Nothing is written yet."""
        _need_cryptography()
        self._folder = folder
        self._days = days

    def make(self, users: Iterable[User], hosts: Sequence[str] = LOOPBACK) -> tuple[str, ...]:
        """Make what is not there: authority, server, root and users; return the files made.

        Raises BadAccess for a host that is none, before anything is made.
        """
        names = [_general_name(host) for host in hosts]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            made = self._make_authority()
            made += self._sign("server", "", names)
            for file, name in ((ROOT, ROOT), *((user.file, user.name) for user in users)):
                made += self._sign(file, name)
        except OSError as error:
            raise CertificatesRefused(
                f"certificates: {error.filename}: {error.strerror}"
            ) from error
        return made

    def _make_authority(self) -> tuple[str, ...]:
        if (self._folder / "ca.pem").exists():
            return ()
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        key = _new_key()
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "changeover authority")])
        usage = _usage(signs_certificates=True)
        certificate = (
            self._builder(name, key.public_key())
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return self._write("ca", key, certificate)

    def _sign(
        self, file: str, common_name: str, hosts: Sequence[x509.GeneralName] = ()
    ) -> tuple[str, ...]:
        """Make a certificate, for a user or, with hosts, for a server."""
        if (self._folder / f"{file}.pem").exists():
            return ()
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509 import oid

        ca, ca_key = self._load_authority()
        kind = x509.NameOID.COMMON_NAME if common_name else x509.NameOID.ORGANIZATION_NAME
        name = x509.Name([x509.NameAttribute(kind, common_name or "changeover etcd")])
        purposes = [oid.ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:  # a member is a client of the others, and of itself
            purposes.append(oid.ExtendedKeyUsageOID.SERVER_AUTH)
        key = _new_key()
        builder = (
            self._builder(name, key.public_key())
            .issuer_name(ca.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return self._write(file, key, builder.sign(ca_key, hashes.SHA256()))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        from cryptography import x509

        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + dt.timedelta(days=self._days))
        )

    def _load_authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        pem, key_file = self._folder / "ca.pem", self._folder / "ca.key"
        if not key_file.exists():
            raise CertificatesRefused(
                f"{key_file} is not there, so nothing new can be signed: bring it back, or begin "
                "a new authority in an empty folder"
            )
        try:
            certificate = x509.load_pem_x509_certificate(pem.read_bytes())
            key = load_pem_private_key(key_file.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise CertificatesRefused(f"{pem} or its key cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificatesRefused(f"{key_file} is not a key that was made here")
        return certificate, key

    def _write(
        self, file: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> tuple[str, ...]:
        from cryptography.hazmat.primitives import serialization as form

        raw_key = key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        )
        _appear(self._folder / f"{file}.key", raw_key, 0o600)
        _appear(self._folder / f"{file}.pem", certificate.public_bytes(form.Encoding.PEM), 0o644)
        return f"{file}.key", f"{file}.pem"


def _appear(path: Path, content: bytes, mode: int) -> None:
    """Let a file be there whole, with its mode, or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host.isascii() or not host.replace("-", "").replace(".", "").isalnum():
        raise BadAccess(f"host {host!r}: neither an address nor the name of a machine")
    return x509.DNSName(host)


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise CertificatesRefused(
            "certificates need a package that is not installed: pip install 'changeover[tls]'"
        ) from error
