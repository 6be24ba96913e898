"""What can go wrong with the control plane itself; the log's and the core's own trees stand beside.

ChangeoverError
 +-- UsageError
 |    +-- BadConfig           a setting is wrong: names source, field, value and what is allowed
 |    +-- TargetExists        a file would be overwritten: choose another, or insist
 |    +-- NoSuchNode          the name is wrong; the message has the nearest one
 |    +-- JobExists           a job is declared once: choose another name
 |    +-- NoSuchJob           the name is wrong
 |    +-- NothingToExplain    the log does not know it
 |    +-- BadAccess           a name that no user of etcd, or no certificate, can have
 +-- ControlError             the act cannot be done now; commands exit with 1
      +-- LeaderPresent       another controller leads: stop it, or stand by
      +-- StoreAbsent         no store answers where it should
      +-- LogRefuted          a log is not what it claims: names the first fault
      +-- JobOver             a job that is finished cannot be stopped
      +-- ActRefusedError     the state of the fleet forbids the act: the message says why
      +-- PluginFailed        a plug-in did what it may not: named
      +-- CertificatesRefused  a folder of certificates that cannot be gone on with
"""

from typing import Final

from statemachine.errors import ChangeoverError, UsageError

VALUE_CHARS_MAX: Final = 200
"""How much of a value that cannot be is shown: whoever wrote it knows the rest."""


class BadConfig(UsageError):
    """A setting that cannot be; the message names where it came from and what is allowed."""

    def __init__(self, source: str, value: object, allowed: str) -> None:
        """Remember the source, such as ``--etcd`` or ``changeover.toml: etcd.url``."""
        self.source = source
        shown = repr(value)
        if len(shown) > VALUE_CHARS_MAX:
            shown = f"{shown[:VALUE_CHARS_MAX]}..."
        super().__init__(f"{source}: {shown}: {allowed}")


class ControlError(ChangeoverError):
    """The act cannot be done now."""


class LeaderPresent(ControlError):
    """Another controller leads the fleet, and this one was told not to wait."""


class StoreAbsent(ControlError):
    """No store answers where it should."""


class LogRefuted(ControlError):
    """A log that cannot be what it claims; names the first fault."""


class TargetExists(UsageError):
    """A file is there that would be overwritten."""


class NoSuchNode(UsageError):
    """No node of that name ever joined the fleet."""


class ActRefusedError(ControlError):
    """The state of the fleet forbids an operator's act."""


class JobExists(UsageError):
    """A job is declared once."""


class NoSuchJob(UsageError):
    """No job of that name was declared."""


class JobOver(ControlError):
    """A job that is finished cannot be stopped."""


class NothingToExplain(UsageError):
    """The log does not know what is asked about."""


class BadAccess(UsageError):
    """A name that no user of etcd, or no certificate, can have."""


class PluginFailed(ControlError):
    """Something of others that was put in did what it may not; the message names it."""


class CertificatesRefused(ControlError):
    """A folder of certificates that cannot be gone on with; the message says what is wrong."""
