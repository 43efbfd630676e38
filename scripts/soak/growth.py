"""Whether a run that lasts takes ever more memory, or keeps files open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.stats import theilslopes

from scripts.soak.disturbed import ROOT

_KEYS = [
    *("dataset.num_nodes=300", "model.hidden_channels=16", "trainer.batch_size=32"),
    *("trainer.gpus=0", "distributed.threads=1", "logger=[csv,tensorboard]"),
]
_WARM_UP = 0.2  # share of the epochs after which memory is looked at
_MOST_GROWTH = 0.01
_SECONDS_BETWEEN_LOOKS = 0.2


def watch_growth(num_epochs: int, seed: int, keys: Sequence[str] = _KEYS) -> dict[str, Any]:
    """Train one run of a tiny graph and say how memory and handles went after the warm-up.

    Returns:
        `growth`: of the resident memory from the end of the warm-up to the last epoch, as a share
        of its median, by a line through it that few outliers do not move (Theil, 1950; Sen, 1968);
        `open_files` and `threads`: the fewest and the most; `clean`: whether memory grew by less
        than 1 % and no file stayed open.
    """
    with tempfile.TemporaryDirectory(prefix="gnntrain-soak-") as directory:
        run = Path(directory, "run")
        asked = [*keys, f"trainer.epochs={num_epochs}", f"trainer.seed={seed}", f"run.dir={run}"]
        job = subprocess.Popen(
            [sys.executable, "-m", "gnntrain", "train", *asked],
            cwd=ROOT,
            env=dict(os.environ),
            stdout=subprocess.DEVNULL,
        )
        looks = _looks(job, run / "metrics.jsonl", int(_WARM_UP * num_epochs))
        lines = (run / "metrics.jsonl").read_text().splitlines()
    if job.returncode != 0:
        raise RuntimeError(f"the run ended with exit code {job.returncode}")
    memory = np.array([json.loads(line)["memory"] for line in lines], dtype=np.float64)
    growth = relative_growth(memory[int(_WARM_UP * num_epochs) :])
    files, threads = zip(*looks, strict=True)
    fifth = max(1, len(files) // 5)
    stays = bool(np.median(files[-fifth:]) <= np.median(files[:fifth]))
    return {
        "clean": growth < _MOST_GROWTH and stays,
        "epochs": len(memory),
        "growth": growth,
        "median_bytes": int(np.median(memory)),
        "open_files": [min(files), max(files)],
        "threads": [min(threads), max(threads)],
    }


def relative_growth(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """How much a series grows from its beginning to its end, by its Theil-Sen slope, as a share of
    its median."""
    thinned = values[:: max(1, len(values) // 500)]
    slope = theilslopes(thinned)[0]
    return float(slope * len(thinned) / np.median(thinned))


def _looks(job: subprocess.Popen[bytes], table: Path, warm_up: int) -> list[tuple[int, int]]:
    """Open files and threads of a run, again and again from the end of its warm-up on."""
    process = psutil.Process(job.pid)
    looks = []
    while job.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        if table.exists() and table.read_bytes().count(b"\n") >= warm_up:
            try:
                look = (process.num_fds(), process.num_threads())
            except psutil.Error:
                break
            if look[0]:  # none: it has just ended
                looks.append(look)
    job.wait()
    return looks
