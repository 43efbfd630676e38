"""Errors with a message and a hint for the user, and their exit codes."""

from __future__ import annotations

import signal
from collections.abc import Sequence

# The exit code of what another try may mend. Kubeflow's operators start a container again whose
# code is 128 or more, and keep this one (128 + SIGUSR1) for the program's own judgement.
RESTART_CODE = 138


class GnntrainError(Exception):
    """An error with a sentence for the user: `message` says what was wrong, with the value, `hint`
    what to do about it."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UserError(GnntrainError):
    """The user's mistake: one clear message and a hint, exit code 2."""

    exit_code = 2


class RunError(GnntrainError):
    """A failure at run time; earlier checkpoints are kept."""


class TransientError(RunError):
    """A failure of the machine, its disks or its network, which another try may not meet."""


class RankLost(TransientError):
    """A rank, its machine or the network to it has gone: a restart goes on from the checkpoint.
    `ranks` are those that are lost, where they are known."""

    def __init__(self, message: str, hint: str | None = None, ranks: Sequence[int] = ()) -> None:
        super().__init__(message, hint)
        self.ranks = tuple(ranks)


class Diverged(RunError):
    """The loss or the weights are not finite; a restart from the checkpoint would fail again."""


class Interrupted(KeyboardInterrupt):
    """The signal `number` asked the run to end: it saves and ends, as after Ctrl-C; the exit code
    is 128 + number, as in a shell."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number


def may_mend(error: BaseException) -> bool:
    """Whether another try from the last checkpoint may succeed, by the error and its causes: one of
    the system (also a lost connection or mount) or a lack of memory, which other programs use too;
    a mistake, a loss that is not finite, any other exception would happen again."""
    if isinstance(error, UserError | Diverged):
        return False
    # torch's own class for a GPU that failed, which is not imported here.
    is_gpus = any(kind.__qualname__ == "AcceleratorError" for kind in type(error).__mro__)
    of_system = isinstance(error, TransientError | OSError | EOFError | MemoryError)
    may = of_system or is_gpus or is_communication(error)
    return may or (error.__cause__ is not None and may_mend(error.__cause__))


def is_communication(error: BaseException) -> bool:
    """Whether torch.distributed has raised it: a class of its own, or gloo's plain RuntimeError,
    which tells the place in gloo's source."""
    if any(kind.__module__ == "torch.distributed" for kind in type(error).__mro__):
        return True
    gloo = ("gloo/transport/", "Application timeout caused pair closure")
    return type(error) is RuntimeError and any(words in str(error) for words in gloo)


def exit_code(error: BaseException) -> int:
    """The exit code of a command that failed."""
    if may_mend(error):
        return RESTART_CODE
    return error.exit_code if isinstance(error, GnntrainError) else RunError.exit_code


def signal_of(error: KeyboardInterrupt) -> signal.Signals:
    """The signal of an interruption; Python's own KeyboardInterrupt is SIGINT."""
    return signal.Signals(error.number if isinstance(error, Interrupted) else signal.SIGINT)
