"""Seconds that a run takes from the command to its end, beside `import torch`.

    python -m scripts.bench.start --rounds 7

Every contestant runs once a round, in turns, so that a disturbance of the machine meets them all;
medians and spreads are over the rounds. Stores and compiled kernels are prepared before, but for
the first run, which has an empty cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TORCH = [sys.executable, "-c", "import torch"]
_RUN = [sys.executable, "-m", "gnntrain", "trainer.gpus=0", "run.dir=run"]
_NUM_TRIALS = 10
_TRIALS = ["-m", f"trainer.seed=range(0,{_NUM_TRIALS})"]

CONTESTANTS: Mapping[str, Sequence[str]] = {
    "import torch": _TORCH,
    "default run": _RUN,
    "2 CPU ranks": [*_RUN, "distributed.num_processes=2"],
    f"sweep of {_NUM_TRIALS} trials": [*_RUN[:-1], *_TRIALS],
}
"""The commands that are timed."""


def seconds(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> float:
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


def measure(rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each contestant, one a round."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    # Beside the code Numba keeps one cache for all; here the first run shall find none.
    fresh = {**environment, "NUMBA_CACHE_DIR": str(folder / "kernels")}
    taken = {"first run, empty cache": [seconds(_RUN, folder / "run", fresh)]}
    for command in CONTESTANTS.values():
        seconds(command, folder / "run", fresh)
    for _ in range(rounds):
        for name, command in CONTESTANTS.items():
            taken.setdefault(name, []).append(seconds(command, folder / "run", fresh))
    return taken


def table(taken: Mapping[str, Sequence[float]]) -> str:
    """The figures as Markdown: medians with their spread, and ratios to `import torch`."""
    torch = statistics.median(taken["import torch"])
    lines = ["| | median s | from - to | × import torch |", "|-|-|-|-|"]
    for name, found in taken.items():
        median = statistics.median(found)
        spread = f"{min(found):.2f} - {max(found):.2f}"
        lines.append(f"| {name} | {median:.2f} | {spread} | {median / torch:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    with tempfile.TemporaryDirectory() as folder:
        print(table(measure(parser.parse_args().rounds, Path(folder))))


if __name__ == "__main__":
    main()
