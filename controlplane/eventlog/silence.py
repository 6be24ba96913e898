"""Why no etcd answers: one connection by hand, which says what a client library keeps to itself.

What belongs here: to whom a silence is owed, and the cure. A client of etcd tries again and again,
and says of a certificate that expired no more than of a machine that is off; so when it gave up, we
ask each server once: whether somebody listens, whether it speaks TLS, whether we believe it, and
whether it believes us. Nothing is asked of etcd itself. Blocking, for a few `PATIENCE_S` a server.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from controlplane.eventlog.etcd_url import Endpoints, TlsFiles

PATIENCE_S: Final = 1.0
"""How long each step of a connection may take, in seconds."""

_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The preface of HTTP/2 and empty settings: whoever speaks it answers with settings of its own."""

_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _NOT_YET_VALID
_HOSTNAME, _ADDRESS = 62, 64  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH


class Silence(Struct, frozen=True, kw_only=True):
    """Why nobody answers, whose fault that is, and what to do."""

    words: str
    cure: str
    is_of_tls: bool = False


NOBODY: Final = Silence(
    words="nothing listens there", cure="start one, or name another with --etcd or CHANGEOVER_ETCD"
)
MUTE: Final = Silence(
    words="it takes connections and answers nothing: it has no leader, or is overloaded",
    cure="see etcdctl endpoint health, and bring its members back",
)
_RENEW: Final = "move the old .pem and .key away and make new ones: changeover init"


def why_silent(endpoints: Endpoints, tls: TlsFiles | None) -> Silence:
    """Ask each server; return what explains most: a fault of TLS, then a mute one, then nobody.

    Raises:
        ValueError: a TLS file cannot be read.
    """
    found = [_ask(host, port, endpoints, tls) for host, port in endpoints.hosts]
    of_tls = [each for each in found if each.is_of_tls]
    mute = [each for each in found if each is MUTE]
    return (of_tls or mute or found)[0]


def _ask(host: str, port: int, endpoints: Endpoints, tls: TlsFiles | None) -> Silence:
    if not endpoints.tls:
        return _ask_plainly(host, port)
    context = _context(tls)
    if isinstance(context, Silence):
        return context
    name = (tls.server_name if tls else "") or endpoints.hosts[0][0]
    try:
        plain = socket.create_connection((host, port), PATIENCE_S)
    except OSError:
        return NOBODY
    with plain:
        return _ask_privately(plain, context, name)


def _ask_plainly(host: str, port: int) -> Silence:
    """A server that speaks TLS says nothing to whoever does not: so offer it that."""
    try:
        plain = socket.create_connection((host, port), PATIENCE_S)
    except OSError:
        return NOBODY
    offer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    offer.check_hostname = False  # nothing is told to it, nor believed
    offer.verify_mode = ssl.CERT_NONE
    with plain:
        try:
            offer.wrap_socket(plain).close()
        except OSError as error:
            if "ALERT" not in (getattr(error, "reason", None) or ""):
                return MUTE
    return _of_tls("it speaks TLS only", "name it as https://..., with --ca, --cert and --key")


def _context(tls: TlsFiles | None) -> ssl.SSLContext | Silence:
    """Our side of a handshake, or what is wrong with our files."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    if tls is None:
        return context
    tls.read()  # a file that is not there is said in the words of the client
    try:
        if tls.ca:
            context.load_verify_locations(tls.ca)
    except ssl.SSLError:
        return _of_tls(f"{tls.ca} holds no certificate", "name the authority's ca.pem with --ca")
    try:
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key or None, password=_no_password)
    except (ssl.SSLError, ValueError):
        words = f"{tls.cert} and {tls.key or 'no key'} are no certificate with its key"
        return _of_tls(words, "name a pair with --cert and --key, as changeover init makes them")
    return context


def _no_password() -> str:
    return ""  # of an encrypted key: asked for, OpenSSL would turn to the terminal


def _ask_privately(plain: socket.socket, context: ssl.SSLContext, name: str) -> Silence:
    try:
        with context.wrap_socket(plain, server_hostname=name) as private:
            private.sendall(_HELLO)
            private.recv(1)  # TLS 1.3: only now do we hear what it thinks of our certificate
    except ssl.SSLCertVerificationError as error:
        return _unbelieved(error, name)
    except ssl.SSLError as error:
        return _refused(error)
    except OSError:
        return MUTE
    return MUTE


def _unbelieved(error: ssl.SSLCertVerificationError, name: str) -> Silence:
    """What we found wrong with the server's certificate."""
    match error.verify_code:
        case code if code == _EXPIRED:
            return _of_tls("etcd's own certificate has expired", f"on its machine, {_RENEW}")
        case code if code == _NOT_YET:
            return _of_tls("etcd's certificate is not valid yet", "set the clock: chrony or ntpd")
        case code if code in (_HOSTNAME, _ADDRESS):
            cure = f"changeover init --host {name}, or tls.server_name in the settings"
            return _of_tls(f"etcd's certificate is not one for {name}", cure)
        case _:
            cure = "name with --ca the authority that signed it"
            return _of_tls("etcd's certificate is of an authority that we do not know", cure)


def _refused(error: ssl.SSLError) -> Silence:
    """What the server found wrong with ours."""
    reason = (error.reason or "").upper()
    if "EXPIRED" in reason:
        return _of_tls("our own certificate (--cert) has expired, says etcd", _RENEW)
    if "CERTIFICATE_REQUIRED" in reason:
        cure = "name one with --cert and --key, as changeover init makes them"
        return _of_tls("etcd asks for a certificate and we show none", cure)
    if "ALERT" in reason and ("CERTIFICATE" in reason or "CA" in reason):
        cure = "show one that etcd's authority signed: --cert and --key"
        return _of_tls("etcd refuses our certificate (--cert): of another authority", cure)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return _of_tls("it speaks without TLS", "name it as http://..., or give etcd certificates")
    if "EOF" in reason:
        words = "it hung up on our TLS handshake: most likely it speaks without TLS"
        return _of_tls(words, "name it as http://..., or see the log of etcd")
    return _of_tls(f"the TLS handshake failed ({reason.lower()})", "see the log of etcd")


def _of_tls(words: str, cure: str) -> Silence:
    return Silence(words=words, cure=cure, is_of_tls=True)
