"""Runs that are disturbed and resumed until they complete, and what became of them."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from gnntrain.errors import UserError
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.checkpoint import CheckpointError, load_checkpoint
from scripts.soak.faults import FAULTS, Fault, Target, damage_last

ROOT = Path(__file__).parents[2]
_MARK = "GNNTRAIN_SOAK"  # tells the processes of a soak from all others
_MOST_SECONDS_TO_END = 30.0
_MOST_SECONDS_A_RUN = 600.0
_SHARED_MEMORY = Path("/dev/shm")
_TIMES = ("seconds", "eval_seconds", "seeds_per_s", "edges_per_s", "memory", "time")
_STATE = ("model", "optimizer", "schedule", "scaler", "loader", "step", "best_epoch", "best")
_SUMMARY = ("status", "epochs", "best_epoch", "train_loss", "train", "val", "test")

KEYS = [
    *("dataset.num_nodes=400", "model.hidden_channels=16", "trainer.batch_size=8"),
    *("trainer.epochs=40", "trainer.scheduler=cosine", "trainer.gpus=0"),
    *("checkpoint.every_steps=3", "logger=[csv,tensorboard]", "distributed.threads=1"),
]


@dataclass
class Report:
    """What a soak found.

    Attributes:
        faults: How often each was done.
        survived: How often the run then ended equal to the undisturbed one, by fault.
        runs: Runs that were disturbed until they completed.
        equal: Those of them that ended equal, bit for bit.
        resumes: How often a run was resumed.
        begun_again: How often it had to be begun again: it was ended before its first checkpoint.
        states_lost: Checkpoints that were there before a fault, and not after it.
        orphans: Processes that outlived their command by 30 seconds, and by the time that a run
            takes here until its first epoch is done: a rank that starts notices when it has.
        leftovers: Files left in shared memory, or unfinished in a run directory that completed.
        slowest_end: Most seconds from a fault until all processes had ended.
        problems: What went wrong, in words.
    """

    faults: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    equal: int = 0
    resumes: int = 0
    begun_again: int = 0
    states_lost: int = 0
    orphans: int = 0
    leftovers: list[str] = field(default_factory=list)
    slowest_end: float = 0.0
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `clean`: nothing was lost, left or unequal."""
        wrong = self.states_lost or self.orphans or self.leftovers or self.problems
        counts = {"faults": dict(self.faults), "survived": dict(self.survived)}
        return {"clean": not wrong and self.equal == self.runs, **vars(self), **counts}


class Soak:
    """Disturbs runs in `directory`.

    Args:
        directory: Where the runs go; empty, on a small disk that nobody else uses.
        keys: Configuration of the runs.
        seed: Of the runs and of what happens to them.
        tell: Gets a line an event.
    """

    def __init__(
        self, directory: Path, keys: Iterable[str], *, seed: int, tell: Callable[[str], None]
    ) -> None:
        self.report = Report()
        self._directory = directory
        self._log = directory.parent / f"{directory.name}.log"
        self._keys = [*keys, f"trainer.seed={seed}"]
        self._dice = random.Random(seed)
        self._tell = tell
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        self._shared_before = _shared_files()
        self._undisturbed = directory / "undisturbed"
        self._seconds_to_start = 1.0

    def prepare(self) -> None:
        """Train the run that all others are compared with."""
        begin = time.monotonic()
        job = self._start(["train", *self._keys, f"run.dir={self._undisturbed}"])
        while job.poll() is None and not (self._undisturbed / "metrics.jsonl").exists():
            time.sleep(0.05)
        self._seconds_to_start = time.monotonic() - begin
        if job.wait(_MOST_SECONDS_A_RUN) != 0:
            raise RuntimeError(f"the undisturbed run failed:\n{self._said()}")
        self._tell(f"undisturbed run: {time.monotonic() - begin:.1f} s")

    def disturb_one(self, faults: Iterator[Fault]) -> None:
        """One run from its beginning until it completes, disturbed by each of `faults` in turn."""
        run = self._directory / "run"
        done: list[str] = []
        from_the_beginning = command = ["train", *self._keys, f"run.dir={run}"]
        while True:
            job = self._start(command)
            suffered: list[Fault] = []
            for fault in faults:
                self._wait_for_a_moment(job, run)
                if job.poll() is not None:
                    break
                self._disturb(job, run, fault)
                suffered.append(fault)
                if job.poll() is not None:
                    break
            done += (fault.__name__ for fault in suffered)
            code = self._await_end(job, suffered)
            if code == 0:
                break
            if not suffered:
                self._problem(f"undisturbed, it ended with exit code {code}: {self._said()}")
                break
            if _newest_steps(run):
                self.report.resumes += 1
                command = ["resume", str(run)]
            else:
                self.report.begun_again += 1
                shutil.rmtree(run, ignore_errors=True)
                command = from_the_beginning
        self._judge(run, done)
        shutil.rmtree(run)

    def _wait_for_a_moment(self, job: psutil.Popen, run: Path) -> None:
        """While it starts, or some seconds after it wrote a checkpoint for the first time."""
        if self._dice.random() < 0.3:
            delay = self._dice.uniform(0.0, self._seconds_to_start)
        else:
            delay = self._dice.uniform(0.0, 8.0)
            last = run / "checkpoints" / "last.pt"
            begun = last.stat().st_mtime_ns if last.exists() else 0
            while job.poll() is None and (not last.exists() or last.stat().st_mtime_ns == begun):
                time.sleep(0.01)
                if not last.exists():
                    begun = 0
        end = time.monotonic() + delay
        while time.monotonic() < end and job.poll() is None:
            time.sleep(0.01)

    def _disturb(self, job: psutil.Popen, run: Path, fault: Fault) -> None:
        name, before = fault.__name__, _newest_steps(run)
        ends = fault(Target(job, run, self._dice))
        self.report.faults[name] += 1
        if ends:  # all processes must, and soon
            begin = time.monotonic()
            seconds = _MOST_SECONDS_TO_END + self._seconds_to_start
            _, alive = psutil.wait_procs([job, *self._processes()], timeout=seconds)
            self.report.slowest_end = max(self.report.slowest_end, time.monotonic() - begin)
            for process in alive:
                with suppress(psutil.Error):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        self.report.orphans += 1
                        shown = f"{process.pid} is still there ({' '.join(process.cmdline())})"
                        self._problem(f"{name}: process {shown}")
                        process.kill()
        # The newest may be the one that was damaged; the one before it must be there.
        kept = before[1:] if fault is damage_last else before
        if kept and (not (after := _newest_steps(run)) or after[0] < kept[0]):
            self.report.states_lost += 1
            self._problem(f"{name}: checkpoints of steps {before} before and {after} after it")
        self._tell(f"{name} at step {before[0] if before else 0}")

    def _await_end(self, job: psutil.Popen, suffered: Sequence[Fault]) -> int:
        faults = " and ".join(fault.__name__ for fault in suffered)
        try:
            code = int(job.wait(_MOST_SECONDS_A_RUN))
        except psutil.TimeoutExpired:
            self._problem(f"{faults}: the run did not end: {self._said()}")
            for process in [job, *self._processes()]:
                process.kill()
            code = int(job.wait())
        if suffered and not any(code in FAULTS[fault] for fault in suffered):
            self._problem(f"{faults}: exit code {code}: {self._said()}")
        return code

    def _judge(self, run: Path, done: list[str]) -> None:
        self.report.runs += 1
        try:
            found = differences(run, self._undisturbed)
        except (OSError, UserError, ValueError, KeyError) as error:
            found = [f"{type(error).__name__}: {error}"]
        unfinished = [p.name for p in run.rglob(".*") if p.is_file() and p.name != ".lock"]
        self.report.leftovers += unfinished
        self.report.leftovers += sorted(_shared_files() - self._shared_before)
        if found:
            self._problem(f"after {', '.join(done)} it ended differently in {', '.join(found)}")
        else:
            self.report.equal += 1
            self.report.survived.update(done)
        self._tell(f"run {self.report.runs}: {'DIFFERENT' if found else 'equal'} after {done}")

    def _start(self, arguments: list[str]) -> psutil.Popen:
        with self._log.open("wb") as log:
            return psutil.Popen(
                [sys.executable, "-m", "gnntrain", *arguments],
                env=os.environ | {_MARK: self._mark},
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _said(self) -> str:
        return " / ".join(self._log.read_text(errors="replace").splitlines()[-8:])

    def _processes(self) -> Iterator[psutil.Process]:
        """All below the last command that live."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.ppid() != os.getpid() and process.environ().get(_MARK) == self._mark:
                    yield process

    def _problem(self, words: str) -> None:
        self.report.problems.append(words)
        self._tell(f"PROBLEM {words}")


def _newest_steps(run: Path) -> list[int]:
    """Steps of the whole checkpoints that can be gone on from, the newest first."""
    steps = []
    for name in ("last.pt", "last.prev.pt"):
        with suppress(CheckpointError):
            steps.append(int(load_checkpoint(run / "checkpoints" / name)["step"]))
    return steps


def _shared_files() -> set[str]:
    return {path.name for path in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()


def differences(run: Path, undisturbed: Path) -> list[str]:
    """What differs: rows of the tables, states in the checkpoints, the summary; times aside."""
    found = []
    for name in ("metrics.jsonl", "metrics.csv"):
        tables = [_rows(path / name) for path in (run, undisturbed)]
        found += [name] if tables[0] != tables[1] else []
    for name in ("last.pt", "best.pt"):
        states = [load_checkpoint(path / "checkpoints" / name) for path in (run, undisturbed)]
        found += [f"{name}: {key}" for key in _STATE if not _equal(*(s[key] for s in states))]
    summaries = [RunDirectory(path).summary() or {} for path in (run, undisturbed)]
    return found + [
        f"summary.json: {key}" for key in _SUMMARY if not _equal(*(s.get(key) for s in summaries))
    ]


def _rows(path: Path) -> list[dict[str, Any]]:
    """A table without times."""
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)] if path.suffix == ".csv" else map(json.loads, [*file])
    return [
        {k: v for k, v in row.items() if k not in _TIMES and not k.startswith("time/")}
        for row in rows
    ]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
