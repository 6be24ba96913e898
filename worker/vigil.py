"""The vigil: while a step is overdue, this process asks its neighbours whether they still run.

What belongs here: asking, answering, and how long an answer has been missing. What does not: what
follows from silence (`statemachine.decide`), and resets of links, which need no asking.

Theory of operation. A peer that is stopped (SIGSTOP, a frozen machine, a cut cable) keeps its
connections open and says nothing: a collective would wait for it for ever. A slow peer does so too,
and must not be accused. The difference is a thread that answers authenticated datagrams at the
number of the link listener's port: it runs whenever the process is scheduled at all.

Silence is counted in questions that were asked in time and not answered: a process that was not
scheduled itself cannot mistake its own absence for that of others. A peer that never answered
anything, such as a joiner that froze while it was a standby, counts as silent only if others do
answer: else perhaps no question gets through. Nobody is asked anything until a step takes longer
than a learned multiple of the usual one.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from controlplane.eventlog.promptness import be_prompt
from statemachine.topology import Patience
from worker.groups.port import GroupPlan, Member

log = logging.getLogger("worker.vigil")

TICK_S: Final = 0.25
"""Time between two questions."""

EVERYBODY_MAX: Final = 16
"""Members of a group up to this size are all asked; in a larger one, those of adjacent indices."""

_NONCE_BYTES: Final = 16
_STEPS_KEPT: Final = 64
_ASK: Final = b"ask"
_ANSWER: Final = b"answer"


class Answering:
    """Answers questions of peers that know the fleet's secret. One per training process."""

    def __init__(self, secret: bytes, job: str, address: tuple[str, int]) -> None:
        self._secret, self._job = secret, job
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._sock.bind(address)
        except OSError as error:
            log.warning("cannot answer whether this process runs: %s", error)
        threading.Thread(target=self._answer, name="vigil-answer", daemon=True).start()

    def _answer(self) -> None:
        be_prompt()
        while True:
            try:
                asked, who = self._sock.recvfrom(256)
                nonce = asked[:_NONCE_BYTES]
                if hmac.compare_digest(asked, nonce + _proof(self._secret, self._job, _ASK, nonce)):
                    self._sock.sendto(nonce + _proof(self._secret, self._job, _ANSWER, nonce), who)
            except OSError:
                if self._sock.fileno() < 0:
                    return

    def close(self) -> None:
        """Answer no more."""
        self._sock.close()


def _proof(secret: bytes, job: str, word: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join((b"vigil", job.encode(), word, nonce)), "sha256")


@dataclass
class _Asked:
    """One peer that is asked."""

    unanswered: int = 0
    answered: bool = False
    """Whether it ever did."""
    reported: bool = False
    nonces: set[bytes] = field(default_factory=set)


@dataclass(frozen=True)
class Silence:
    """A peer that left questions unanswered for so long; zero: it answers again."""

    member: Member
    waited_s: float
    silent_s: float


class Vigil:
    """Asks while a step is overdue. `plans` are those of this process's seats, read on a thread."""

    def __init__(
        self,
        secret: bytes,
        job: str,
        patience: Patience,
        plans: Callable[[], Iterable[GroupPlan]],
        report: Callable[[Silence], None],
    ) -> None:
        self._secret, self._job, self._patience = secret, job, patience
        self._plans, self._report = plans, report
        self._steps_s: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._began_s: float | None = None
        self._asked: dict[tuple[str, int], _Asked] = {}
        self._are_heard = False
        """Whether anybody ever answered: where nobody can be asked, nobody is called silent."""
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="vigil", daemon=True).start()

    # --- told by the loop -------------------------------------------------------------------------

    def step_began(self) -> None:
        """A step begins; it is overdue unless the next one begins in time."""
        now_s = time.monotonic()
        if self._began_s is not None:
            self._steps_s.append(now_s - self._began_s)
        self._began_s = now_s

    def rest(self) -> None:
        """Nothing is expected of anybody: no slot is held, or the job is over."""
        self._began_s = None

    def close(self) -> None:
        """Stop asking."""
        self._closing.set()
        self._sock.close()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._closing.wait(TICK_S):
            now_s = time.monotonic()
            in_time = now_s - last_s < 2 * TICK_S
            last_s = now_s
            try:
                self._look(now_s, in_time=in_time)
            except Exception:  # a vigil that ends unheard would let a frozen peer hang all
                log.exception("a look at the peers failed")

    def _look(self, now_s: float, *, in_time: bool) -> None:
        self._hear()
        members = self._members()
        if self._overdue_s(now_s) > 0:
            self._tick(members, now_s, in_time=in_time)
        else:
            self._settle(members)

    def patience_s(self) -> float:
        """How long a step may take before anybody is asked."""
        usual_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        return max(self._patience.wait_floor_s, self._patience.wait_steps * usual_s)

    def _overdue_s(self, now_s: float) -> float:
        began_s = self._began_s
        return now_s - began_s - self.patience_s() if began_s is not None else 0.0

    def _tick(self, members: list[Member], now_s: float, *, in_time: bool) -> None:
        began_s = self._began_s if self._began_s is not None else now_s
        for member in members:
            asked = self._asked[member.identity]
            can_answer = asked.answered or self._are_heard
            asked.unanswered += int(in_time and can_answer and bool(asked.nonces))
            silent_s = asked.unanswered * TICK_S
            if silent_s >= self._patience.silence_s and not asked.reported:
                asked.reported = True
                self._report(Silence(member, now_s - began_s, silent_s))
            elif asked.reported and not asked.unanswered:
                asked.reported = False
                self._report(Silence(member, now_s - began_s, 0.0))
            self._ask(member, asked)

    def _members(self) -> list[Member]:
        found: dict[tuple[str, int], Member] = {}
        for plan in self._plans():
            for index, member in enumerate(plan.members):
                apart = (index - plan.me) % plan.size
                near = plan.size <= EVERYBODY_MAX or apart in (1, plan.size - 1)
                if apart and near:
                    found[member.identity] = member
                    self._asked.setdefault(member.identity, _Asked())
        for identity in [one for one in self._asked if one not in found]:
            del self._asked[identity]
        return list(found.values())

    def _ask(self, member: Member, asked: _Asked) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        asked.nonces.add(nonce)
        try:
            proof = _proof(self._secret, self._job, _ASK, nonce)
            self._sock.sendto(nonce + proof, (member.host, member.port))
        except OSError as error:
            log.info("cannot ask %s: %s", member, error)

    def _hear(self) -> None:
        while True:
            try:
                said = self._sock.recv(256)
            except OSError:
                return
            nonce = said[:_NONCE_BYTES]
            asked = next((one for one in self._asked.values() if nonce in one.nonces), None)
            proof = nonce + _proof(self._secret, self._job, _ANSWER, nonce)
            if asked is not None and hmac.compare_digest(said, proof):
                asked.unanswered, asked.answered, self._are_heard = 0, True, True
                asked.nonces.clear()

    def _settle(self, members: list[Member]) -> None:
        """Nothing is overdue: whoever was called silent is not, and newcomers are greeted."""
        for member in members:
            asked = self._asked[member.identity]
            if asked.reported:
                self._report(Silence(member, 0.0, 0.0))
            asked.unanswered, asked.reported = 0, False
            asked.nonces.clear()
            if not asked.answered:
                self._ask(member, asked)
