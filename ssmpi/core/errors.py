"""Errors that the user can fix, with a remedy in the message; every module raises these, the command line prints them.

An ``assert`` elsewhere means a bug in ssmpi.
"""

STOPPED = 85  # exit code of a run that was asked to stop and can be resumed
LOST = 86  # exit code of a run that lost a rank or a host: a restart may succeed


class UserError(ValueError):
    """Bad input: the message says what was asked, what was found and what to do. Printed without a traceback."""


class SettingsError(UserError):
    """An invalid run file or override."""


class DataError(UserError):
    """A raw file, a shard or a manifest that is missing, damaged, foreign or inconsistent."""


class TopologyError(UserError):
    """Numbers of ranks, roles or threads that do not fit together."""


class TrainingError(UserError):
    """Training that cannot continue: a loss that is not finite, an id beyond its table."""


class PeerError(RuntimeError):
    """Another rank did not answer in time, or is gone."""
