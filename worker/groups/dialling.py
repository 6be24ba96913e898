"""How a link is dialled: two connections, each with a hello of its own.

What belongs here: the dialler's half of opening. What does not: which links are wanted (links).
"""

import secrets
import socket
import time
from dataclasses import dataclass, replace

from worker.groups import hello
from worker.groups.hello import Claim, Role
from worker.groups.port import Channel, GroupPlan, HelloRefused, Member, PrepareRefused


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose links these are."""

    job: str
    node: str
    incarnation: int


class Dialler:
    """Dials for one incarnation that knows the fleet's secret."""

    def __init__(self, identity: Identity, secret: bytes, *, locally: bool = True) -> None:
        self._identity = identity
        self._secret = secret
        self._locally = locally

    def dial_pair(
        self, plan: GroupPlan, member: Member, channel: Channel, ends_at: float
    ) -> tuple[socket.socket, socket.socket]:
        """Return the control and the bulk connection to `member`; `ends_at` is monotonic time.

        Raises:
            PrepareRefused: it could not be reached in time, refused, or did not prove itself.
        """
        claim = self._claim(plan, member, channel)
        left_s = max(0.001, ends_at - time.monotonic())
        try:
            control, bulk = hello.dial(
                (member.host, member.port),
                self._secret,
                [claim, replace(claim, role=int(Role.BULK))],
                left_s,
                locally=self._locally,
            )
        except (OSError, HelloRefused) as error:
            reason = str(error) or type(error).__name__
            raise PrepareRefused(f"{plan.name}: cannot dial: {reason}", member) from None
        return control, bulk

    def _claim(self, plan: GroupPlan, member: Member, channel: Channel) -> Claim:
        return Claim(
            job=self._identity.job,
            group=plan.name,
            channel=int(channel),
            transition=plan.transition,
            role=int(Role.CONTROL),
            link=secrets.token_hex(16),
            node=self._identity.node,
            incarnation=self._identity.incarnation,
            to_node=member.node,
            to_incarnation=member.incarnation,
        )
