"""Has the trials of a sweep trained, and writes down what becomes of each."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIG_IGN, SIGINT, getsignal, signal
from typing import TYPE_CHECKING

from gnntrain.app import Sources
from gnntrain.config import Config, ConfigError
from gnntrain.distributed.signals import ENDING
from gnntrain.errors import Interrupted
from gnntrain.plugins import told
from gnntrain.reporting.console import SweepConsole
from gnntrain.reporting.rundir import free, has_checkpoint
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder
from gnntrain.sweep.slots import Slots
from gnntrain.sweep.workers import Outcome, TrialRequest, Worker, left_behind

if TYPE_CHECKING:
    from gnntrain.sweep.launching import JobLauncher

_LOOK_SECONDS = 0.1
# How long trials may take to save what they reached after Ctrl-C or SIGTERM.
_GRACE_SECONDS = 40.0


class TrialQueue:
    """The trials of a grid; those of a search are a `Study`. Trials with the statuses `ended` are
    not trained again."""

    def __init__(
        self, trials: Sequence[Trial], ended: Sequence[str] = ("completed", "pruned")
    ) -> None:
        self.trials = list(trials)  # so far, by number
        self.num_trials = len(self.trials)  # in the end
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


class TrialRunner:
    """Trains the trials of a sweep; one that fails does not stop the others."""

    def __init__(
        self, folder: SweepFolder, queue: TrialQueue, sources: Sources, view: SweepConsole
    ) -> None:
        self._folder, self._queue, self._sources, self._view = folder, queue, sources, view
        self._signal: int | None = None  # what ends the sweep

    def run_here(self, slots: Slots, data: object = None) -> None:
        """Train all trials in processes of this machine, one in each slot at a time.

        Raises:
            Interrupted: After Ctrl-C, SIGTERM or SIGHUP, or where a trial was interrupted by
                itself; all have ended then, with what they reached.
        """
        log = self._folder.path / "workers.log"
        idle = [Worker(given, log) for given in reversed(slots.environments)]
        busy: dict[Worker, Trial] = {}
        try:
            with self._signals_noted():
                while self._signal is None:
                    while idle and (task := self._next()) is not None:
                        trial, config = task
                        self._view.on_trial(trial)
                        self._folder.write_trials(self._queue.trials)
                        worker, plain = idle.pop(), None
                        busy[worker] = trial
                        if config is not None:
                            run = config.run.model_copy(update={"dir": trial.run_dir, "name": None})
                            config = config.model_copy(update={"run": run})
                            plain = slots.share(config).to_dict()
                        worker.start(TrialRequest(trial.run_dir, plain, trial.overrides, data))
                    if not busy:
                        break
                    idle += self._listen(busy)
                self._wind_down(busy)
        finally:
            for worker in [*idle, *busy]:
                worker.close(kill=worker in busy)
            self._folder.write_trials(self._queue.trials)
        if self._signal is not None:
            raise Interrupted(self._signal)

    def run_by(self, launcher: JobLauncher, batch_size: int) -> None:
        """Train all trials by a launcher of Hydra's, a batch at a time.

        Raises:
            KeyboardInterrupt: The sweep or a job was interrupted.
        """
        while batch := [t for t, _ in itertools.islice(iter(self._next, None), batch_size)]:
            self._folder.write_trials(self._queue.trials)
            outcomes, is_over = None, threading.Event()
            watch = threading.Thread(target=self._watch, args=(batch, is_over), daemon=True)
            watch.start()
            try:
                outcomes = _launch(launcher, batch)
            finally:
                is_over.set()
                watch.join()
                lost = (left_behind(trial.run_dir, "interrupted") for trial in batch)
                for trial, outcome in zip(batch, outcomes or lost, strict=True):
                    if trial.status == "running":
                        self._end(trial, outcome)
                self._folder.write_trials(self._queue.trials)

    def _watch(self, batch: Sequence[Trial], is_over: threading.Event) -> None:
        """Tell of trials as they end: a launcher returns when all have."""
        while not is_over.wait(1.0):
            for trial in [trial for trial in batch if trial.status == "running"]:
                outcome = left_behind(trial.run_dir, "running")
                if outcome["status"] == "completed":  # a cluster may start others again
                    self._end(trial, outcome)
                    self._folder.write_trials(self._queue.trials)
            self._view.refresh()

    def _next(self) -> tuple[Trial, Config | None] | None:
        """The next trial, begun, and its configuration; None: it goes on from a checkpoint."""
        while (trial := self._queue.next()) is not None:
            config = None
            if not has_checkpoint(trial.run_dir):
                try:
                    config = self._sources.compose(trial.overrides)
                except ConfigError as error:  # the values do not go together
                    trial.status, trial.error = "failed", told(error)
                    self._queue.tell(trial)
                    self._view.on_trial_end(trial)
                    continue
                # One beside that of a trial which ended before its first checkpoint.
                trial.run_dir = str(free(Path(trial.run_dir)))
            trial.status, trial.error = "running", None
            return trial, config
        return None

    def _end(self, trial: Trial, outcome: Outcome, seconds: float | None = None) -> None:
        """Write down how a trial ended."""
        trial.status = outcome["status"]
        trial.metric = outcome.get("metric", trial.metric)
        trial.epochs, trial.best_epoch = outcome.get("epochs"), outcome.get("best_epoch")
        trial.seconds = outcome.get("seconds_total") if seconds is None else seconds
        if trial.metric is not None:
            trial.val = outcome.get("val", {}).get(trial.metric)
            trial.test = outcome.get("test", {}).get(trial.metric)
        if trial.status == "failed":
            trial.error = outcome.get("error") or "the run failed"
        self._queue.tell(trial)
        self._view.on_trial_end(trial)

    @contextlib.contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Signals never come between two halves of a message; a second Ctrl-C does."""

        def note(number: int, _frame: object) -> None:
            if self._signal is None:
                self._signal = number
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

    def _listen(self, busy: dict[Worker, Trial]) -> list[Worker]:
        """Take in what workers say; those whose trial has ended, which are not busy any more."""
        ended = []
        for worker, kind, what in Worker.events(busy, _LOOK_SECONDS):
            trial = busy[worker]
            if kind == "start":
                trial.metric, worker.epochs = what.metric, what.epochs
            elif kind == "step":
                self._view.on_step(trial, what, worker.epochs)
            elif kind == "epoch":
                value = what.metric("val", trial.metric)
                is_hopeless = self._queue.should_prune(trial, what.epoch, worker.epochs, value)
                worker.answer(what.epoch, is_hopeless=is_hopeless)
                self._view.on_epoch(trial, what, worker.epochs)
            elif kind == "message":
                self._view.on_message(f"trial {trial.number}: {what}")
            else:
                if kind == "lost":
                    status = "failed" if self._signal is None else "interrupted"
                    what = left_behind(trial.run_dir, status, what)
                if what["status"] == "interrupted" and self._signal is None:
                    self._signal = SIGINT
                del busy[worker]
                ended.append(worker)
                self._end(trial, what, time.monotonic() - worker.began)
                self._folder.write_trials(self._queue.trials)
        self._view.refresh()
        return ended

    def _wind_down(self, busy: dict[Worker, Trial]) -> None:
        """Let the trials save what they reached; a second Ctrl-C ends them at once."""
        for worker in busy:
            worker.signal(self._signal or SIGINT)
        deadline = time.monotonic() + _GRACE_SECONDS
        try:
            while busy and time.monotonic() < deadline:
                for worker in self._listen(busy):
                    worker.close()
        finally:
            for trial in busy.values():
                trial.status = "interrupted"


def _launch(launcher: JobLauncher, batch: Sequence[Trial]) -> list[Outcome]:
    """A job a trial, by its overrides and the names of its folders."""
    jobs = []
    for trial in batch:
        path = Path(trial.run_dir)
        folders = {"hydra.sweep.dir": path.parent, "hydra.sweep.subdir": path.name}
        named = [f"{key}={json.dumps(str(name))}" for key, name in folders.items()]
        jobs.append([*launcher.hydra_overrides(trial.overrides), *named])
    try:
        returns = launcher.launcher.launch(jobs, batch[0].number)
        return [job.return_value for job in returns]
    except Exception as error:  # submitit's where the system ended a job
        return [left_behind(t.run_dir, "failed", told(error)) for t in batch]
