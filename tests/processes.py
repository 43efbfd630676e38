"""Processes that tests start, and wait for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """The variables of this process, with which Python imports gnntrain and tests from here."""
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def python(
    *words: object, folder: Path | None = None, env: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """What Python did with these words and, beside those of `environment`, these variables."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env={**environment(), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def started(
    *words: object, folder: Path | None = None, env: Mapping[str, str] = {}, **options: Any
) -> subprocess.Popen[str]:
    """Python, which does so now; its output is read here unless options say otherwise."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, *map(str, words)]
    env = {**environment(), **env}
    return subprocess.Popen(command, cwd=folder, env=env, **piped | options)


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until it holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def free_port() -> int:
    """A port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
