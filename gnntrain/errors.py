"""Errors with a message and a hint for the user, and their exit codes."""

from __future__ import annotations

import signal
from collections.abc import Sequence

# Kubernetes starts a container again whose exit code is 128 or more. This one (128 + SIGUSR1) is
# what Kubeflow's operators have for "failed, and worth another try" by the program's own judgement.
RESTART_CODE = 138


class GnntrainError(Exception):
    """An error with a sentence for the user.

    Args:
        message: What was wrong, with the value.
        hint: What to do about it.
    """

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
    """A failure at run time, exit code 1; earlier checkpoints are kept."""


class RankLost(RunError):
    """A rank, its machine or the network to it has gone: a restart goes on from the checkpoint.

    Under a launcher the exit code is `RESTART_CODE`.

    Args:
        message: As of `GnntrainError`.
        hint: As of `GnntrainError`.
        ranks: The ranks that are lost, where they are known.
    """

    def __init__(self, message: str, hint: str | None = None, ranks: Sequence[int] = ()) -> None:
        super().__init__(message, hint)
        self.ranks = tuple(ranks)


class Diverged(RunError):
    """The loss or the weights are not finite; a restart from the checkpoint would fail again."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to end: it saves and ends, as after Ctrl-C.

    Args:
        number: The signal; the exit code is 128 + number, as in a shell.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number


def signal_of(error: KeyboardInterrupt) -> signal.Signals:
    """The signal of an interruption; Python's own KeyboardInterrupt is SIGINT."""
    return signal.Signals(error.number if isinstance(error, Interrupted) else signal.SIGINT)
