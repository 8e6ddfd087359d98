"""What the user got wrong, said once and with a remedy; every module raises these, the command line prints them.

An ``assert`` elsewhere means that the programmers got something wrong.
"""

STOPPED = 85  # exit code of a run that was asked to stop and can be gone on with
LOST = 86  # exit code of a run that lost a rank or a host: another attempt may do better


class UserError(ValueError):
    """Bad input: the message says what was asked, what was found and what to do. Printed without a traceback."""


class SettingsError(UserError):
    """A run file or an override that cannot be taken."""


class DataError(UserError):
    """A raw file, a shard or a manifest that is missing, damaged, foreign or inconsistent."""


class TopologyError(UserError):
    """Numbers of ranks, roles or threads that do not fit together."""


class TrainingError(UserError):
    """Training that cannot go on: a loss that is not finite, an id beyond its table."""


class PeerError(RuntimeError):
    """Another rank did not answer in time, or is gone."""
