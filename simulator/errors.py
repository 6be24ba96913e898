"""What a person can get wrong; each error names the file, the place, the value and what may be.

UsageError (exit code 2)
 +-- BadScenario   a scenario or grid that no fleet could live
 +-- BadTrace      a fault trace with a row that is none
 +-- BadLog        a log that cannot be read or folded
"""

from statemachine.errors import UsageError


class BadScenario(UsageError):
    """A scenario file that cannot be simulated."""


class BadTrace(UsageError):
    """A trace file that cannot be imported; the line is named."""


class BadLog(UsageError):
    """A log that cannot be read."""


class Interrupted(Exception):
    """Ctrl-C: what is done so far has been printed."""
