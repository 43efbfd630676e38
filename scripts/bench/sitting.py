"""One graph, one stage, all contestants: rounds in which each has a turn."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.bench.cases import BEFORE, OURS, PEERS, Entry
from scripts.bench.peers.turns import Spec
from scripts.bench.process import Absent, Contestant

Say = Callable[[str], None]


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


@dataclass(frozen=True)
class Rules:
    """How a sitting goes.

    Attributes:
        rounds: Turns that count; one before them does not.
        batches: Most batches a turn.
        seconds: How long a turn may take, roughly, if that leaves a batch.
        pythons: Interpreters of peers that have an environment of their own.
        before: Another checkout of gnntrain; None: there is none to compare with.
    """

    rounds: int
    batches: int
    seconds: float
    pythons: Mapping[str, Path]
    before: Path | None = None


def ratios(results: Sequence[Result]) -> dict[tuple[Entry, Entry], Spread]:
    """Ours over every peer with as many threads, and over itself with the fewest.

    The ratio is taken in each round, in which both met the same machine.
    """
    present = [result for result in results if not result.absent]
    fewest = min((result.entry.threads for result in present), default=0)
    found = {}
    for mine in (result for result in present if result.entry.is_ours):
        for other in (result for result in present if result is not mine):
            alone = replace(mine.entry, threads=fewest)
            beside_peer = not other.entry.is_ours and other.entry.threads == mine.entry.threads
            if beside_peer or other.entry == alone:
                shares = [a / b for a, b in zip(mine.rates, other.rates, strict=True)]
                found[mine.entry, other.entry] = Spread.of(shares)
    return found


def sit(base: Spec, entries: Sequence[Entry], rules: Rules, say: Say) -> list[Result]:
    """Measure `entries` on `base` side by side."""
    results: dict[Entry, Result] = {}
    with contextlib.ExitStack() as stack:
        table: dict[Entry, tuple[Contestant, int]] = {}
        for entry in entries:
            say(f"{entry.label} gets ready")
            try:
                contestant = stack.enter_context(_start(base, entry, rules, say))
                table[entry] = contestant, _turn_length(contestant, rules)
                results[entry] = Result(
                    entry, contestant.hello["note"], contestant.hello["versions"]
                )
            except Absent as reason:
                _refuse_without_ours(entry, reason)
                results[entry] = Result(entry, absent=str(reason))
        for number in range(1, rules.rounds + 1):
            # Nobody always runs after the same other contestant.
            order = list(table.items())[:: 1 if number % 2 else -1]
            for entry, (contestant, length) in order:
                say(f"round {number} of {rules.rounds}: {entry.label}")
                try:
                    results[entry] = _added(results[entry], contestant.run(length))
                except Absent as reason:
                    _refuse_without_ours(entry, reason)
                    results[entry] = Result(entry, absent=f"round {number}: {reason}")
                    del table[entry]
    return list(results.values())


def _refuse_without_ours(entry: Entry, reason: Absent) -> None:
    if entry.is_ours:
        raise SystemExit(f"{entry.label} failed: {reason}")


def _added(result: Result, turn: Mapping[str, Any]) -> Result:
    return replace(
        result,
        rates=(*result.rates, turn["batches"] / turn["seconds"]),
        edges_per_batch=turn["edges"] / turn["batches"],
        peak_rss_bytes=max(result.peak_rss_bytes, turn["peak_rss"]),
    )


def _turn_length(contestant: Contestant, rules: Rules) -> int:
    """Warm up, and see how many batches fit into a turn."""
    contestant.run(1)
    seconds = contestant.run(1)["seconds"]
    return max(1, min(rules.batches, int(rules.seconds / seconds)))


def _start(base: Spec, entry: Entry, rules: Rules, say: Say) -> Contestant:
    """The contestant's process; of a peer's two ways to load the faster one."""
    spec = replace(base, variant=entry.name, threads=entry.threads, precision=entry.precision)
    if entry.name == OURS:
        return Contestant("ours", spec)
    if entry.name == BEFORE:
        assert rules.before is not None
        return Contestant("ours", replace(spec, variant=OURS), root=rules.before)
    peer = PEERS[entry.name]
    python = rules.pythons.get(peer, Path(sys.executable))
    script = peer if spec.types is None else f"{peer}_typed"
    rates: dict[int, float] = {}
    reasons = []
    for workers in (0, entry.threads):
        say(f"{entry.label} tries {workers} loader processes")
        try:
            rates[workers] = _trial(script, replace(spec, loader_workers=workers), python, rules)
        except Absent as reason:
            reasons.append(reason)
    if not rates:
        raise reasons[0]
    fastest = max(rates, key=lambda workers: rates[workers])
    return Contestant(script, replace(spec, loader_workers=fastest), python, quiet=True)


def _trial(script: str, spec: Spec, python: Path, rules: Rules) -> float:
    """Batches/s in a turn of half the length."""
    with Contestant(script, spec, python, quiet=True) as trial:
        turn = trial.run(_turn_length(trial, replace(rules, seconds=rules.seconds / 2)))
    return float(turn["batches"] / turn["seconds"])
