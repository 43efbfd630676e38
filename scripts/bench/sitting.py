"""One graph, one stage, all contestants: processes that take turns in rounds."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from gnntrain.startup import VARIABLES
from scripts.bench.peers.turns import Spec

OURS = "gnntrain"
BEFORE = "before"
"""Another checkout of gnntrain, with `--before`."""

PEERS = {
    "pyg": "pyg",
    "pyg-trimmed": "pyg",
    "graphbolt": "graphbolt",
    "graphbolt-sparse": "graphbolt",
}
"""Contestants beside ours, with the script of `peers/` that is run."""

Say = Callable[[str], None]

_ROOT = Path(__file__).parents[2]
_QUIET_SECONDS = 0.05
_MOST_QUIET_CHECKS = 400


@dataclass(frozen=True)
class Entry:
    """A contestant in one sitting."""

    name: str
    precision: str
    threads: int

    @property
    def is_ours(self) -> bool:
        return self.name == OURS

    @property
    def label(self) -> str:
        return self.name if self.precision == "fp32" else f"{self.name} {self.precision}"


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass(frozen=True)
class Result:
    """What a contestant reached.

    Attributes:
        entry: Who.
        note: How it worked, in its own words.
        versions: Of the libraries it used.
        rates: Batches/s (inference: whole passes/s) of every round.
        edges_per_batch: Edges drawn a batch (inference: walked a pass).
        peak_rss_bytes: The most resident memory of its process, mapped pages included and loader
            processes not.
        absent: Why there is nothing else; empty: there is.
    """

    entry: Entry
    note: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    edges_per_batch: float = 0.0
    peak_rss_bytes: int = 0
    absent: str = ""

    @property
    def rate(self) -> Spread:
        return Spread.of(self.rates)


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

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, num_batches: int) -> dict[str, Any]:
        """One turn, and the wait until its loader has made ahead what it will."""
        self._tell(f"run {num_batches}")
        answer = self._answer()
        before = self._cpu_seconds()
        for _ in range(_MOST_QUIET_CHECKS):
            time.sleep(_QUIET_SECONDS)
            now = self._cpu_seconds()
            if now - before < _QUIET_SECONDS / 4:
                break
            before = now
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
        # Where it has ended, the missing answer says so, if one is wanted.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()

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

    def _cpu_seconds(self) -> float:
        try:
            process = psutil.Process(self._process.pid)
            family = [process, *process.children(recursive=True)]
            return float(sum(sum(member.cpu_times()[:2]) for member in family))
        except psutil.NoSuchProcess:
            return 0.0


def ratios(results: Sequence[Result]) -> dict[tuple[Entry, Entry], Spread]:
    """Ours over every peer with as many threads, and over itself with the fewest.

    The ratio is taken in each round, in which both met the same machine.
    """
    present = [result for result in results if not result.absent]
    fewest = min((result.entry.threads for result in present), default=0)
    shares = {}
    for mine in (result for result in present if result.entry.is_ours):
        for other in (result for result in present if result is not mine):
            alone = replace(mine.entry, threads=fewest)
            beside_peer = not other.entry.is_ours and other.entry.threads == mine.entry.threads
            if beside_peer or other.entry == alone:
                each = [a / b for a, b in zip(mine.rates, other.rates, strict=True)]
                shares[mine.entry, other.entry] = Spread.of(each)
    return shares


def sit(
    base: Spec, entries: Sequence[Entry], batches: int, options: Namespace, say: Say
) -> list[Result]:
    """Measure `entries` on `base` side by side.

    Args:
        base: What all are asked to do.
        entries: Who takes part.
        batches: Most batches a turn.
        options: `rounds` that count, one before them does not; `seconds` that a turn may take,
            roughly, if that leaves a batch; `pythons` of peers with an environment of their own;
            `before`, another checkout of gnntrain, or None.
        say: Takes a line about who is measured.
    """
    results: dict[Entry, Result] = {}

    def turn_length(contestant: Contestant, seconds: float) -> int:
        """Warm up, and see how many batches fit into a turn."""
        contestant.run(1)
        return max(1, min(batches, int(seconds / contestant.run(1)["seconds"])))

    def started(entry: Entry) -> Contestant:
        """The contestant's process; of a peer's two ways to load the faster one."""
        spec = replace(base, variant=entry.name, threads=entry.threads, precision=entry.precision)
        if entry.name in (OURS, BEFORE):
            root = options.before if entry.name == BEFORE else _ROOT
            return Contestant("ours", replace(spec, variant=OURS), root=root)
        peer = PEERS[entry.name]
        python = options.pythons.get(peer, Path(sys.executable))
        rates: dict[int, float] = {}
        reasons = []
        for workers in (0, entry.threads):
            say(f"{entry.label} tries {workers} loader processes")
            asked = replace(spec, loader_workers=workers)
            try:
                with Contestant(peer, asked, python, quiet=True) as trial:
                    turn = trial.run(turn_length(trial, options.seconds / 2))
                rates[workers] = turn["batches"] / turn["seconds"]
            except Absent as reason:
                reasons.append(reason)
        if not rates:
            raise reasons[0]
        fastest = max(rates, key=lambda workers: rates[workers])
        return Contestant(peer, replace(spec, loader_workers=fastest), python, quiet=True)

    def leave(entry: Entry, reason: str) -> None:
        if entry.is_ours:
            raise SystemExit(f"{entry.label} failed: {reason}")
        results[entry] = Result(entry, absent=reason)

    with contextlib.ExitStack() as stack:
        table: dict[Entry, tuple[Contestant, int]] = {}
        for entry in entries:
            say(f"{entry.label} gets ready")
            try:
                contestant = stack.enter_context(started(entry))
                table[entry] = contestant, turn_length(contestant, options.seconds)
                hello = contestant.hello
                results[entry] = Result(entry, hello["note"], hello["versions"])
            except Absent as reason:
                leave(entry, str(reason))
        for number in range(1, options.rounds + 1):
            # Nobody always runs after the same other contestant.
            for entry, (contestant, length) in list(table.items())[:: 1 if number % 2 else -1]:
                say(f"round {number} of {options.rounds}: {entry.label}")
                try:
                    turn = contestant.run(length)
                except Absent as reason:
                    leave(entry, f"round {number}: {reason}")
                    del table[entry]
                    continue
                before = results[entry]
                results[entry] = replace(
                    before,
                    rates=(*before.rates, turn["batches"] / turn["seconds"]),
                    edges_per_batch=turn["edges"] / turn["batches"],
                    peak_rss_bytes=max(before.peak_rss_bytes, turn["peak_rss"]),
                )
    return list(results.values())
