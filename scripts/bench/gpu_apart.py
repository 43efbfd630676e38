"""The cases of the GPU benchmark, each in a process of its own.

One that crashes, or hangs, or leaves the GPU unusable for its process, loses no other.
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from gnntrain.reporting.environment import describe_environment
from scripts.bench.gpu_figures import Figure, Report

_SECONDS = 100
_ROOT = Path(__file__).parents[2]


def end_a_hang() -> None:
    """End this process, with the stacks of its threads, if it takes longer than a case may."""
    faulthandler.dump_traceback_later(_SECONDS, exit=True)


def run_apart(
    names: Sequence[str],
    rounds: int,
    console: Console,
    path: Path | None,
    command: Sequence[str],
    *,
    prepare: Callable[[str], object],
    start: Callable[[list[str]], int] | None = None,
) -> Report:
    """Measure the cases of these names, and write what came of them after each.

    Args:
        prepare: Does what a case needs beforehand, and is not timed.
        start: Runs a Python with these arguments to its end; gives its exit status.
    """
    start = start or _run_python
    report = Report(describe_environment(seed=0, command=command))
    for name in names:
        prepare(name)
        with tempfile.TemporaryDirectory() as scratch:
            part = Path(scratch) / "figure.json"
            own = ["--here", name, "--rounds", str(rounds), "--json", str(part)]
            status = start(["-m", "scripts.bench.gpu", *own])
            told = json.loads(part.read_text("utf-8")) if part.exists() else {}
        report.figures += [Figure(**one) for one in told.get("figures", [])]
        report.left_out |= told.get("left_out", {})
        report.failures |= told.get("failures", {})
        if status not in (0, 1) or not told:
            said = f"its process ended with exit status {status}; see what it printed"
            report.failures.setdefault(name, said)
            console.print(f"{name}: {said}", highlight=False)
        if path is not None:
            report.write(path)
    return report


def _run_python(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, *arguments], cwd=_ROOT, check=False).returncode
