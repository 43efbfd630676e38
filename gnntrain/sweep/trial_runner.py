"""Has trials trained, several at a time, and writes down what becomes of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIG_IGN, SIGINT, getsignal, signal
from typing import TYPE_CHECKING, Any, Protocol

from gnntrain.config import Config
from gnntrain.distributed.signals import ENDING
from gnntrain.errors import Interrupted
from gnntrain.reporting.run_lookup import has_checkpoint
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.pool import Worker, WorkerDied, listening
from gnntrain.sweep.process import Outcome, TrialRequest
from gnntrain.sweep.slots import Slots
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress

if TYPE_CHECKING:
    from gnntrain.sweep.study import Study  # imports Optuna

_LOOK_SECONDS = 0.1
# How long trials may take to save what they reached after Ctrl-C or SIGTERM.
_GRACE_SECONDS = 40.0


class View(Protocol):
    """Who shows a sweep."""

    def on_trial(self, trial: Trial) -> None:
        """A trial is begun."""

    def on_info(self, trial: Trial, info: RunInfo) -> None:
        """What it trains is known."""

    def on_step(self, trial: Trial, progress: StepProgress) -> None:
        """It went on."""

    def on_epoch(self, trial: Trial, record: EpochRecord) -> None:
        """It ended an epoch."""

    def on_message(self, trial: Trial, text: str) -> None:
        """It has something to say."""

    def on_trial_end(self, trial: Trial) -> None:
        """It ended, however it did."""

    def refresh(self) -> None:
        """Time passes."""


class TrialRunner:
    """Trains the trials of a study.

    Args:
        folder: The sweep's.
        study: Where the trials come from.
        slots: How many at a time, and where.
        view: Who is told.
        clock: Seconds that only grow.
        data: See `TrialRequest`.
    """

    def __init__(
        self,
        folder: SweepFolder,
        study: Study,
        slots: Slots,
        view: View,
        clock: Callable[[], float] = time.monotonic,
        data: object = None,
    ) -> None:
        self._folder = folder
        self._study = study
        self._slots = slots
        self._view = view
        self._clock = clock
        self._data = data
        log = folder.path / "workers.log"
        self._idle = [Worker(given, log) for given in reversed(slots.environments)]
        self._busy: dict[Worker, Trial] = {}
        self._began: dict[int, float] = {}
        self._infos: dict[int, RunInfo] = {}
        self._is_over = False
        self._signal: int | None = None

    def run(self) -> None:
        """Train all trials; none stops the others.

        Raises:
            Interrupted: After Ctrl-C, SIGTERM or SIGHUP, or where a trial was interrupted by
                itself; all have ended then, with what they reached.
        """
        try:
            with self._signals_noted():
                while not self._is_over and self._fill():
                    self._listen()
                if self._is_over:
                    self._wind_down()
        finally:
            for worker in [*self._idle, *self._busy]:
                worker.close(kill=worker in self._busy)
            self._write()
            self._study.save()
        if self._is_over:
            raise Interrupted(self._signal or SIGINT)

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Signals never come between two halves of a message; a second Ctrl-C does."""

        def note(number: int, _frame: object) -> None:
            if self._signal is None:
                self._signal, self._is_over = number, True
            elif number == SIGINT:
                raise Interrupted(self._signal)

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread gets signals
            return
        answered = [number for number in ENDING if getsignal(number) != SIG_IGN]
        previous = {number: signal(number, note) for number in answered}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal(number, handler)

    def _fill(self) -> bool:
        """Begin as many trials as there is room for; whether any is being trained."""
        while self._idle and (task := self._study.next()) is not None:
            self._begin(self._idle.pop(), *task)
        self._tell_unbegun()
        self._study.save()  # after the next trials have begun: it takes a while
        return bool(self._busy)

    def _begin(self, worker: Worker, trial: Trial, config: Config | None) -> None:
        begin(trial)
        self._busy[worker] = trial
        self._began[trial.number] = self._clock()
        self._view.on_trial(trial)
        self._write()
        plain = None
        if config is not None:
            run = config.run.model_copy(update={"dir": trial.run_dir, "name": None})
            plain = self._slots.share(config.model_copy(update={"run": run})).to_dict()
        worker.start(TrialRequest(trial.run_dir, plain, tuple(trial.overrides), self._data))

    def _tell_unbegun(self) -> None:
        """Trials whose values do not go together fail before they begin."""
        while self._study.invalid:
            self._view.on_trial_end(self._study.invalid.pop(0))

    def _listen(self) -> None:
        for worker in listening(list(self._busy), _LOOK_SECONDS):
            try:
                kind, what = worker.hear()
            except WorkerDied as error:
                kind, what = "end", self._left_behind(self._busy[worker], str(error))
            self._take_in(worker, kind, what)
        self._view.refresh()

    def _left_behind(self, trial: Trial, last_output: str) -> Outcome:
        """How a trial ended whose process could not say it: it may have been over just then."""
        summary = RunDirectory(Path(trial.run_dir)).summary() or {}
        status = str(summary.get("status", "interrupted" if self._is_over else "failed"))
        return Outcome(status, summary, last_output if status == "failed" else None)

    def _take_in(self, worker: Worker, kind: str, what: Any) -> None:
        trial = self._busy[worker]
        if kind == "start":
            trial.metric = what.metric
            self._infos[trial.number] = what
            self._view.on_info(trial, what)
        elif kind == "step":
            self._view.on_step(trial, what)
        elif kind == "epoch":
            worker.answer(what.epoch, is_hopeless=self._is_hopeless(trial, what))
            self._view.on_epoch(trial, what)
        elif kind == "message":
            self._view.on_message(trial, what)
        else:
            self._end(worker, trial, what)

    def _is_hopeless(self, trial: Trial, record: EpochRecord) -> bool:
        info = self._infos[trial.number]
        value = record.metric("val", info.metric)
        return self._study.should_prune(trial, record.epoch, info.epochs, value)

    def _end(self, worker: Worker, trial: Trial, outcome: Outcome) -> None:
        del self._busy[worker]
        self._idle.append(worker)
        take_over(trial, outcome)
        trial.seconds = self._clock() - self._began[trial.number]
        self._is_over = self._is_over or trial.status == "interrupted"
        self._study.tell(trial)
        self._view.on_trial_end(trial)
        self._write()

    def _wind_down(self) -> None:
        """Let the trials save what they reached; a second Ctrl-C ends them at once."""
        for worker in self._busy:
            worker.signal(self._signal or SIGINT)
        deadline = self._clock() + _GRACE_SECONDS
        try:
            while self._busy and self._clock() < deadline:
                self._listen()
        finally:
            for trial in self._busy.values():
                trial.status = "interrupted"

    def _write(self) -> None:
        self._folder.write_trials(self._study.trials)


def begin(trial: Trial) -> None:
    """Note that a trial is begun, without a checkpoint in a run directory of its own."""
    if not has_checkpoint(trial.run_dir):
        trial.run_dir = _unused(trial.run_dir)
    trial.status, trial.error = "running", None


def take_over(trial: Trial, outcome: Outcome) -> None:
    """Write down how a trial ended."""
    summary = outcome.summary
    trial.status = outcome.status
    trial.metric = summary.get("metric", trial.metric)
    trial.epochs, trial.best_epoch = summary.get("epochs"), summary.get("best_epoch")
    if trial.metric is not None:
        trial.val = summary.get("val", {}).get(trial.metric)
        trial.test = summary.get("test", {}).get(trial.metric)
    if trial.status == "failed":
        trial.error = outcome.error or "the run failed"


def _unused(run_dir: str) -> str:
    """The directory, or one beside it where it holds what cannot be gone on with."""
    names: Sequence[str] = [run_dir, *(f"{run_dir}-{again}" for again in range(2, 1000))]
    return next(name for name in names if not Path(name).exists() or not any(Path(name).iterdir()))
