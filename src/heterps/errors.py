"""Errors are help: each says what is wrong, where, and what to do next, and carries the exit code of the command.

0  done                     4  bad data                   8  a peer, deadline or worker failed
1  a bug of ours            5  bad model                130  interrupted (Ctrl-C), state saved
2  bad job, file or option  6  bad run or checkpoint    143  terminated (SIGTERM), state saved
3  no feasible plan         7  storage refused (disk full, permissions)
"""


class HeterpsError(Exception):
    """The base of every error a user can cause or mend. Its text is shown as it is, without a traceback."""

    exit_code = 1


class ConfigError(HeterpsError):
    """A job, cluster, profile or plan file, or an option, says something that cannot be."""

    exit_code = 2


class PlanInfeasible(HeterpsError):
    """No plan meets the constraints; the text names the one that binds and what would relax it."""

    exit_code = 3


class DataError(HeterpsError):
    """Training data is missing, unreadable or not what the schema says; the text names file, row and column."""

    exit_code = 4


class ModelError(HeterpsError):
    """A model cannot be imported, traced, profiled or run on a batch."""

    exit_code = 5


class NotFinite(ModelError):
    """A prediction, loss or gradient is NaN or infinite; the text says which, and when."""


class RunError(HeterpsError):
    """A run folder is not what the command needs: not there, not empty, of another job."""

    exit_code = 6


class CorruptCheckpoint(RunError):
    """A checkpoint's files do not match its manifest."""


class PeerLost(HeterpsError):
    """Another process that was waited for died, failed or did not answer in time; the text names it."""

    exit_code = 8


class StaleIncarnation(HeterpsError):
    """A process goes on although a newer one has taken its place; it must end, and changes nothing any more."""

    exit_code = 8


class StorageError(HeterpsError):
    """The file system refused a write: full disk, no permission, read-only."""

    exit_code = 7
