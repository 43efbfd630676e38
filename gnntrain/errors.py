"""What a user may be told went wrong, and with which exit code the command ends."""

from __future__ import annotations

import signal


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
    """Something failed at run time: what was reached is saved, exit code 1."""


class Diverged(RunError):
    """The loss or the weights are not finite: from the same checkpoint it would happen again."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to end: it ends as after Ctrl-C, with what it reached.

    Args:
        number: The signal; the exit code is 128 more, as a shell has it.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number


def signal_of(error: KeyboardInterrupt) -> signal.Signals:
    """The signal behind an interruption; Python itself raises one only for Ctrl-C."""
    return signal.Signals(error.number if isinstance(error, Interrupted) else signal.SIGINT)
