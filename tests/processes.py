"""Processes that tests start, and wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(
    *words: object,
    folder: Path | None = None,
    env: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[str]:
    """Python with these words and variables; it imports gnntrain and tests from here."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until it holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
