"""What can go wrong with the control plane itself; the log's and the core's own trees stand beside.

ChangeoverError
 +-- UsageError
 |    +-- BadConfig           a setting is wrong: names source, field, value and what is allowed
 +-- ControlError             the act cannot be done now; commands exit with 1
      +-- LeaderPresent       another controller leads: stop it, or stand by
      +-- StoreAbsent         no store answers where it should
"""

from statemachine.errors import ChangeoverError, UsageError


class BadConfig(UsageError):
    """A setting that cannot be; the message names where it came from and what is allowed."""

    def __init__(self, source: str, value: object, allowed: str) -> None:
        """Remember the source, such as ``--etcd`` or ``changeover.toml: etcd.url``."""
        self.source = source
        super().__init__(f"{source}: {value!r}: {allowed}")


class ControlError(ChangeoverError):
    """The act cannot be done now."""


class LeaderPresent(ControlError):
    """Another controller leads the fleet, and this one was told not to wait."""


class StoreAbsent(ControlError):
    """No store answers where it should."""
