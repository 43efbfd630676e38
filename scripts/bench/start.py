"""Seconds that a run takes from the command to its end, beside `import torch`.

    python -m scripts.bench.start --rounds 7

Every contestant runs once a round, in turns, so that a disturbance of the machine meets them all;
medians and spreads are over the rounds. Stores and compiled kernels are prepared before, but for
the first run, which finds neither.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_RUN = [sys.executable, "-m", "gnntrain", "trainer.gpus=0", "run.dir=run"]
_NUM_TRIALS = 10

TORCH, RUN, FIRST, RANKS, SWEEP = (
    "import torch",
    "default run",
    "first run",
    "2 CPU ranks",
    f"sweep of {_NUM_TRIALS} trials",
)
CONTESTANTS: Mapping[str, Sequence[str]] = {
    TORCH: [sys.executable, "-c", "import torch"],
    RUN: _RUN,
    FIRST: _RUN,
    RANKS: [*_RUN, "distributed.num_processes=2"],
    SWEEP: [*_RUN[:-1], "-m", f"trainer.seed=range(0,{_NUM_TRIALS})"],
}
"""The commands that are timed."""


@dataclass
class Taken:
    """What the rounds of a contestant took.

    Attributes:
        seconds: Wall-clock seconds from the command to its end.
        training: Of these, the epochs of its runs, as their `metrics.jsonl` say.
    """

    seconds: list[float]
    training: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measure(rounds: int, folder: Path) -> dict[str, Taken]:
    """Time each contestant once a round."""
    prepared = _environment(folder / "prepared")
    for command in CONTESTANTS.values():
        _time(command, folder / "run", prepared)
    taken = {name: Taken([], []) for name in CONTESTANTS}
    for _ in range(rounds):
        for name, command in CONTESTANTS.items():
            shutil.rmtree(folder / "empty", ignore_errors=True)
            environment = _environment(folder / "empty") if name == FIRST else prepared
            taken[name].seconds.append(_time(command, folder / "run", environment))
            taken[name].training.append(_trained(folder / "run"))
    return taken


def _environment(caches: Path) -> dict[str, str]:
    # Beside the code Numba keeps one cache for all.
    places = {"XDG_CACHE_HOME": str(caches), "NUMBA_CACHE_DIR": str(caches / "kernels")}
    return {**os.environ, **places}


def _time(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Wall-clock seconds of a command in an empty folder.

    Raises:
        RuntimeError: It failed; with what it printed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    begin = time.perf_counter()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    taken = time.perf_counter() - begin
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")
    return taken


def _trained(folder: Path) -> float:
    """Seconds of all epochs of all runs in a folder."""
    lines = [line for path in folder.rglob("metrics.jsonl") for line in path.open()]
    epochs = map(json.loads, lines)
    return sum((epoch["seconds"] + epoch.get("eval_seconds", 0.0) for epoch in epochs), 0.0)


def table(taken: Mapping[str, Taken]) -> str:
    """The figures as Markdown: medians with their spread, each beside what it must be."""
    torch, run, sweep = taken[TORCH].median, taken[RUN].median, taken[SWEEP]
    trial = statistics.median(
        (seconds - training) / _NUM_TRIALS
        for seconds, training in zip(sweep.seconds, sweep.training, strict=True)
    )
    reached = {
        RUN: (f"{run / torch:.2f} × {TORCH}", "2 ×"),
        FIRST: (f"{taken[FIRST].median - run:.2f} s more than the next", "4 s"),
        RANKS: (f"{taken[RANKS].median / run:.2f} × one rank", "1.5 ×"),
        SWEEP: (f"{trial:.2f} s a trial beyond its epochs", "1.5 s"),
    }
    lines = ["| | median s | from - to | reached | at most |", "|-|-|-|-|-|"]
    for name, found in taken.items():
        spread = f"{min(found.seconds):.2f} - {max(found.seconds):.2f}"
        what, must = reached.get(name, ("", ""))
        lines.append(f"| {name} | {found.median:.2f} | {spread} | {what} | {must} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    with tempfile.TemporaryDirectory() as folder:
        print(table(measure(parser.parse_args().rounds, Path(folder))))


if __name__ == "__main__":
    main()
