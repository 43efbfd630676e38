"""The trials of a sweep that are still to be trained, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gnntrain.reporting.trials import Trial


class TrialQueue:
    """The trials of a grid; those of a search are a `Study`.

    Args:
        trials: Those that are known.
        ended: The statuses of trials that are not trained again.

    Attributes:
        trials: All trials so far, by number.
        num_trials: How many there will be.
        ended: Trials that are not trained any more, when the sweep begins or goes on.
    """

    def __init__(
        self, trials: Sequence[Trial], ended: Sequence[str] = ("completed", "pruned")
    ) -> None:
        self.trials = list(trials)
        self.num_trials = len(self.trials)
        self.ended = [trial for trial in self.trials if trial.status in ended]
        self._waiting = deque(trial for trial in self.trials if trial.status not in ended)

    def next(self) -> Trial | None:
        """The next trial; None: there is none."""
        return self._waiting.popleft() if self._waiting else None

    def should_prune(self, trial: Trial, epoch: int, epochs: int, value: float | None) -> bool:  # noqa: ARG002
        """Whether a trial is hopeless after an epoch, by its validation metric."""
        return False

    def tell(self, trial: Trial) -> None:
        """Take in how a trial ended. An interrupted one is asked for when the sweep goes on."""
