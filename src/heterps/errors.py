"""Typed errors. Each says what is wrong, where, and what to do next, and carries the exit code of the command.

0  done                     4  bad data                   8  a peer, deadline or worker failed
1  a bug of ours            5  bad model                130  interrupted (Ctrl-C), state saved
2  bad job, file or option  6  bad run or checkpoint    143  terminated (SIGTERM), state saved
3  no feasible plan         7  storage refused (disk full, permissions)
"""


class HeterpsError(Exception):
    """Base of all errors that a user can cause or fix. Commands show its text without a traceback."""

    exit_code = 1


class ConfigError(HeterpsError):
    """A job, cluster, profile or plan file, or an option, is invalid."""

    exit_code = 2


class ArgumentError(HeterpsError, ValueError, TypeError):
    """An argument of a table in Python has a wrong type, shape or value."""

    exit_code = 2


class PlanInfeasible(HeterpsError):
    """No plan meets the constraints; the text names the binding constraint and what would relax it."""

    exit_code = 3


class DataError(HeterpsError):
    """Training data is missing, unreadable or does not match the schema; the text names file, row and column."""

    exit_code = 4


class DataUnreachable(DataError):
    """The storage of data does not answer, also after several attempts; the text names the address."""


class ModelError(HeterpsError):
    """A model cannot be imported, traced, profiled or run on a batch."""

    exit_code = 5


class NotFinite(ModelError):
    """A prediction, loss or gradient is NaN or infinite; the text says which one, and when."""


class Diverged(ModelError):
    """Training makes the model worse instead of better, and the job says to end then."""


class RunError(HeterpsError):
    """A run folder cannot be used by the command: it is missing, not empty, or of another job."""

    exit_code = 6


class CorruptCheckpoint(RunError):
    """A checkpoint's files do not match its manifest."""


class PeerLost(HeterpsError):
    """Another process died, failed or did not answer in time; the text names it."""

    exit_code = 8


def last_heard(ago_s: float) -> str:
    """Return what is said, after how a peer was lost, of when it was heard of last."""
    return f"; it was last heard of {ago_s:.1f} s before"


class GraceOver(HeterpsError):
    """A run that was terminated could not save within its grace period; its last checkpoint is good."""

    exit_code = 143


class StaleIncarnation(HeterpsError):
    """A process still runs although a newer one has replaced it; it must end and can change nothing any more."""

    exit_code = 8


class MirrorDiffers(HeterpsError):
    """A server and its mirror hold different rows, which is a bug of ours or of the machine; the text names both."""


class StorageError(HeterpsError):
    """The file system refused a write: the disk is full or read-only, or permission is missing."""

    exit_code = 7
