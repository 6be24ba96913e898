"""Where peers knock: one address per training process, one thread, many hellos at once.

Peers on the same machine find a local socket under a name made of the address (`hello.local_name`);
what is said there, and proved, is the same.

What belongs here: accepting connections and carrying out the listener's half of a hello without
ever waiting for one dialer. What does not: what becomes of a connection once it is welcome.

A dialer that is slow, silent or hostile costs one descriptor for `HELLO_DEADLINE_S`, nothing more.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from controlplane.eventlog.promptness import be_prompt
from worker.groups import hello
from worker.groups.hello import Claim, Verdict
from worker.groups.wakeup import WakeUp

HELLO_DEADLINE_S: Final = 5.0
_PENDING_MAX: Final = 512
_BACKLOG: Final = 256

Welcome = Callable[[Claim, socket.socket], None]


@dataclass(slots=True)
class _Pending:
    sock: socket.socket
    challenge: bytes
    ends_at: float
    received: bytearray = field(default_factory=bytearray)


class LinkListener:
    """Accepts connections for one incarnation.

    `judge` decides whether a proven claim is for us; `welcome` takes over the socket, on the
    listener's thread. `refused` counts hellos turned away, by verdict name.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        judge: Callable[[Claim], Verdict],
        welcome: Welcome,
        *,
        locally: bool = True,
    ) -> None:
        self._secret = secret
        self._judge = judge
        self._welcome = welcome
        self.refused: Counter[str] = Counter()
        self._sock = socket.create_server((host, 0), backlog=_BACKLOG)
        self._sock.setblocking(False)
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        self._wake = WakeUp()
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._socks = [self._sock]
        if locally:
            self._listen_locally()
        for sock in self._socks:
            self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._wake.fd, selectors.EVENT_READ)
        self._pending: dict[int, _Pending] = {}
        self._thread = threading.Thread(target=self._run, name="link-listener", daemon=True)
        self._thread.start()

    def _listen_locally(self) -> None:
        """Without a local name (another program has taken it, say) peers use the network."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(hello.local_name(self.address))
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            return
        sock.setblocking(False)
        self._socks.append(sock)

    def close(self) -> None:
        """Stop accepting; connections that were welcomed live on."""
        if self._stopping:
            return
        self._stopping = True
        self._wake.signal()
        self._thread.join()
        for pending in list(self._pending.values()):
            self._drop(pending)
        self._selector.close()
        for sock in self._socks:
            sock.close()

    def abandon(self) -> None:
        """Close descriptors only: for a forked child, which must not keep our sockets alive."""
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.close()
        for pending in self._pending.values():
            pending.sock.close()

    # --- the listener's thread --------------------------------------------------------------------

    def _run(self) -> None:
        be_prompt()
        while not self._stopping:
            for key, _ in self._selector.select(1.0 if self._pending else None):
                if key.fileobj in self._socks:
                    self._accept(key.fileobj)
                elif key.fd in self._pending:
                    self._advance(self._pending[key.fd])
            self._expire()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:  # nothing more for now, or the dialer is already gone
                return
            if len(self._pending) >= _PENDING_MAX:
                self._count(Verdict.SHUTTING_DOWN)
                sock.close()
                continue
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            message, challenge = hello.greeting()
            pending = _Pending(sock, challenge, time.monotonic() + HELLO_DEADLINE_S)
            self._pending[sock.fileno()] = pending
            self._selector.register(sock, selectors.EVENT_READ)
            self._say(pending, message)

    def _advance(self, pending: _Pending) -> None:
        try:
            part = pending.sock.recv(8192)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(pending)
            return
        pending.received += part
        try:
            found = hello.parse(bytes(pending.received))
        except ValueError:
            self._refuse(pending, None, Verdict.MALFORMED)
            return
        if found is not None:
            self._decide(pending, found)

    def _decide(self, pending: _Pending, found: hello.Hello) -> None:
        try:
            proven = hello.check(self._secret, pending.challenge, found)
            claim = Claim.decode(found.raw_claim)
        except ValueError:
            self._refuse(pending, None, Verdict.MALFORMED)
            return
        if not proven:
            self._refuse(pending, found, Verdict.BAD_PROOF)
            return
        verdict = self._judge(claim)
        if verdict is not Verdict.WELCOME:
            self._refuse(pending, found, verdict)
            return
        if self._say(pending, hello.answer(self._secret, pending.challenge, found, verdict)):
            self._forget(pending)
            self._welcome(claim, pending.sock)

    def _refuse(self, pending: _Pending, found: hello.Hello | None, verdict: Verdict) -> None:
        self._count(verdict)
        if self._say(pending, hello.answer(self._secret, pending.challenge, found, verdict)):
            self._drop(pending)

    def _count(self, verdict: Verdict) -> None:
        self.refused[verdict.name.lower()] += 1

    def _say(self, pending: _Pending, message: bytes) -> bool:
        """Send a short message: it fits a new connection's empty buffer, or the peer is gone."""
        try:
            pending.sock.sendall(message)
        except OSError:
            self._drop(pending)
            return False
        return True

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock.fileno()]

    def _drop(self, pending: _Pending) -> None:
        if pending.sock.fileno() in self._pending:
            self._forget(pending)
        pending.sock.close()

    def _expire(self) -> None:
        now = time.monotonic()
        for pending in [one for one in self._pending.values() if one.ends_at < now]:
            self._drop(pending)
