"""The trials of a sweep that are still to be trained, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from gnntrain.app import Composer
from gnntrain.config import Config, ConfigError
from gnntrain.failures import sentence
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.trials import Trial


class TrialQueue:
    """The trials of a grid; those of a search are a `Study`.

    Args:
        trials: Those that are known.
        composer: Composes the configurations of trials.
        ended: The statuses of trials that are not trained again.

    Attributes:
        trials: All trials so far, by number.
        num_trials: How many there will be.
        ended: Trials that are not trained any more, when the sweep begins or goes on.
        invalid: Trials that failed before they began; whoever tells of them removes them.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        composer: Composer,
        ended: Sequence[str] = ("completed", "pruned"),
    ) -> None:
        self.trials = list(trials)
        self.num_trials = len(self.trials)
        self.ended = [trial for trial in self.trials if trial.status in ended]
        self.invalid: list[Trial] = []
        self._waiting = deque(trial for trial in self.trials if trial.status not in ended)
        self._compose = composer.compose

    def next(self) -> tuple[Trial, Config | None] | None:
        """The next trial; None: there is none.

        Its configuration is None where it goes on from a checkpoint.
        """
        while (trial := self._next()) is not None:
            if RunDirectory(Path(trial.run_dir)).has_checkpoint:
                return trial, None
            try:
                return trial, self._compose(trial.overrides).config
            except ConfigError as error:  # the values do not go together
                trial.status, trial.error = "failed", sentence(error)
                self.tell(trial)
                self.invalid.append(trial)
        return None

    def should_prune(self, trial: Trial, epoch: int, epochs: int, value: float | None) -> bool:  # noqa: ARG002
        """Whether a trial is hopeless after an epoch, by its validation metric."""
        return False

    def tell(self, trial: Trial) -> None:
        """Take in how a trial ended. An interrupted one is asked for when the sweep goes on."""

    def _next(self) -> Trial | None:
        return self._waiting.popleft() if self._waiting else None
