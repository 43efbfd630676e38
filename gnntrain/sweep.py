"""Many runs, one after another: all are checked before the first starts, none stops the others."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gnntrain.app import Composed, compose_config, expand_sweep
from gnntrain.config import Config, ConfigError, Problem
from gnntrain.errors import RunError, UserError
from gnntrain.failures import keep_traceback, sentence

SWEEPS = Path("runs") / "multirun"
_LONGEST_NAME = 100

Train = Callable[[Config, Sequence[str]], dict[str, Any]]


@dataclass
class Job:
    """One run of a sweep, as `sweep.json` tells it.

    Attributes:
        number: Place in the sweep, from 0.
        overrides: What was asked.
        run_dir: Its run directory.
        status: `waiting`, `running`, or the run's own.
        metric: The metric's name; None as long as there is none.
        val: The metric on the validation nodes at the best epoch.
        test: The metric on the test nodes at the best epoch.
        seconds: How long it took.
        error: What went wrong.
    """

    number: int
    overrides: list[str]
    run_dir: str
    status: str = "waiting"
    metric: str | None = None
    val: float | None = None
    test: float | None = None
    seconds: float | None = None
    error: str | None = None


def run_sweep(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    train: Train,
    announce: Callable[[str], None],
) -> list[Job]:
    """Train every job of a sweep, one after another, each in its own run directory.

    Args:
        overrides: As for `expand_sweep`.
        config_dirs: As for `compose_config`.
        train: Trains one configuration and returns its summary.
        announce: Is told a line before each job, and of each failure.

    Returns:
        The jobs; `sweep.json` in the sweep's folder holds the same.

    Raises:
        ConfigError: With every mistake of every job; none was started.
        RunError: After the last job, with the jobs that failed.
    """
    composed = _compose_all(expand_sweep(overrides, config_dirs), config_dirs)
    folder = _make_folder(composed)
    jobs = [
        Job(number, one.overrides, str(folder / name))
        for number, (one, name) in enumerate(zip(composed, _names(composed), strict=True))
    ]
    for job, one in zip(jobs, composed, strict=True):
        words = " ".join(job.overrides)
        announce(f"job {job.number + 1} of {len(jobs)}: {words}".rstrip(": "))
        run = one.config.run.model_copy(update={"dir": job.run_dir})
        config = one.config.model_copy(update={"run": run})
        try:
            _run_job(job, config, train)
        finally:
            _write(folder / "sweep.json", jobs)
        if job.error is not None:
            announce(f"job {job.number + 1} failed: {job.error}")
    _raise_failures(jobs, folder)
    return jobs


def _compose_all(jobs: Sequence[list[str]], config_dirs: Sequence[Path]) -> list[Composed]:
    composed: list[Composed] = []
    problems: list[Problem] = []
    for overrides in jobs:
        try:
            composed.append(compose_config(overrides, config_dirs))
        except ConfigError as error:
            problems.extend(error.problems)
    if len({one.config.run.dir for one in composed}) > 1:
        expects = "one folder, in which every job gets its own"
        problems.append(Problem("run.dir", "several values", expects))
    if problems:
        raise ConfigError(problems)
    return composed


def _make_folder(composed: Sequence[Composed]) -> Path:
    """The sweep's folder: `run.dir`, or a new one named by `run.name` or the time."""
    run = composed[0].config.run
    name = run.name if run.name is not None else f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = Path(run.dir) if run.dir is not None else (SWEEPS / name).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sweep.json").touch(exist_ok=False)
    except FileExistsError as error:
        raise UserError(
            f"the folder {folder} holds a sweep already, or is a file; nothing was overwritten",
            "Choose another with run.dir=DIR.",
        ) from error
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be written: {error.strerror or error}",
            "Choose another with run.dir=DIR.",
        ) from error
    return folder


def _names(composed: Sequence[Composed]) -> list[str]:
    """A folder name for each job: its number, and what it does not share with all others."""
    shared = set.intersection(*(set(one.overrides) for one in composed))
    width = len(str(len(composed) - 1))
    names = []
    for number, one in enumerate(composed):
        own = ",".join(text for text in one.overrides if text not in shared)
        plain = re.sub(r"[^\w=.,+-]+", "_", own, flags=re.ASCII)[:_LONGEST_NAME]
        names.append(f"{number:0{width}}_{plain}".rstrip("_"))
    return names


def _run_job(job: Job, config: Config, train: Train) -> None:
    start = time.perf_counter()
    job.status = "running"
    try:
        summary = train(config, job.overrides)
    except Exception as error:  # whatever it is, the other jobs go on
        job.status, job.error = "failed", sentence(error)
        keep_traceback(error, job.run_dir)
    except BaseException:
        job.status = "interrupted"
        raise
    else:
        _take_over(job, summary)
    finally:
        job.seconds = time.perf_counter() - start
    if job.status == "interrupted":
        raise KeyboardInterrupt


def _take_over(job: Job, summary: dict[str, Any]) -> None:
    job.status = str(summary.get("status", "completed"))
    job.metric = summary.get("metric")
    if job.metric is not None:
        job.val = summary.get("val", {}).get(job.metric)
        job.test = summary.get("test", {}).get(job.metric)
    if job.status == "failed":
        job.error = str(summary.get("error") or "the run failed")


def _write(path: Path, jobs: Sequence[Job]) -> None:
    """A JSON list with a line a job; a reader sees the old one or this one."""
    lines = ",\n".join(json.dumps(asdict(job)) for job in jobs)
    draft = path.with_suffix(".part")
    draft.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    draft.replace(path)


def _raise_failures(jobs: Sequence[Job], folder: Path) -> None:
    failed = [job for job in jobs if job.status == "failed"]
    if failed:
        lines = [f"  {Path(job.run_dir).name}: {job.error}" for job in failed]
        raise RunError(
            "\n".join([f"{len(failed)} of {len(jobs)} jobs failed", *lines]),
            f"All results: {folder / 'sweep.json'}",
        )
