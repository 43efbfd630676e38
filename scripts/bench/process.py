"""The benchmark's end of a contestant's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from gnntrain.startup import VARIABLES
from scripts.bench.peers.turns import Spec

_ROOT = Path(__file__).parents[2]
_QUIET_SECONDS = 0.05
_MOST_QUIET_CHECKS = 400


class Absent(Exception):
    """A contestant cannot take part, or can no longer."""


class Contestant:
    """A process of `scripts.bench.peers.<script>`, asleep but for its turns.

    Args:
        script: Name in `scripts/bench/peers/`.
        spec: What it is asked to do.
        python: The interpreter of its environment.
        root: The checkout whose code it runs.
        quiet: Keep its standard error, of which the last line says why it failed.

    Attributes:
        hello: What it said when it was ready.
    """

    def __init__(
        self,
        script: str,
        spec: Spec,
        python: Path = Path(sys.executable),
        *,
        root: Path = _ROOT,
        quiet: bool = False,
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the process
        threads = str(spec.threads)
        # An older checkout does not know what was added since.
        asked = {name: value for name, value in asdict(spec).items() if value is not None}
        self._process = subprocess.Popen(
            [python, "-m", f"scripts.bench.peers.{script}", json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors if quiet else None,
            text=True,
            cwd=root,
            env={
                **(VARIABLES if script == "ours" else {}),  # which the command sets
                **os.environ,
                "PYTHONPATH": str(root.absolute()),
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
            },
        )
        try:
            self.hello = self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, num_batches: int) -> dict[str, Any]:
        """One turn, and the wait until its loader has made ahead what it will."""
        self._tell(f"run {num_batches}")
        answer = self._answer()
        self._settle()
        return answer

    def close(self) -> None:
        """End the process."""
        self._tell("quit")
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the missing answer says so, where one is wanted

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or ["see above"])[-1]
            raise Absent(f"its process ended with exit code {code}: {last}")
        answer: dict[str, Any] = json.loads(line)
        if "absent" in answer:
            raise Absent(answer["absent"])
        return answer

    def _settle(self) -> None:
        """Return when the process and its children have come to rest."""
        before = self._cpu_seconds()
        for _ in range(_MOST_QUIET_CHECKS):
            time.sleep(_QUIET_SECONDS)
            now = self._cpu_seconds()
            if now - before < _QUIET_SECONDS / 4:
                return
            before = now

    def _cpu_seconds(self) -> float:
        try:
            process = psutil.Process(self._process.pid)
            family = [process, *process.children(recursive=True)]
            times = [member.cpu_times() for member in family]
        except psutil.NoSuchProcess:
            return 0.0
        return float(sum(t.user + t.system for t in times))
