"""How a contestant is told to run and how it answers: lines of JSON on its standard streams.

Imports nothing but the standard library, so that it works in any Python environment, and before a
contestant's own imports have made their threads.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

_LEAD_IN_SECONDS = 4.0


@dataclass(frozen=True)
class Spec:
    """What a contestant is asked to do, the same for all of them.

    Attributes:
        stage: "sampling", "gather", "step" or "inference".
        dataset: Name of the data set, as `dataset=` takes it.
        overrides: Further overrides of the data set, for a graph of another size.
        store: Directory of the graph store, whose `.npy` files may be mapped.
        num_classes: Classes to predict.
        fan_outs: In-neighbours drawn a node, the hop next to the seed nodes first.
        batch_size: Seed nodes a batch.
        hidden: Width of the hidden layers.
        threads: Cores the contestant may use.
        precision: "fp32" or "bf16" (autocast).
        loader_workers: Processes of a peer's loader that make batches; 0: the main one does.
        variant: Which contestant of a script.
        types: Of a typed graph: its types, sizes and files of features, see `peers.arrays`.
    """

    stage: str
    dataset: str
    overrides: list[str]
    store: str
    num_classes: int
    fan_outs: list[int]
    batch_size: int
    hidden: int
    threads: int
    precision: str
    loader_workers: int
    variant: str
    types: dict[str, Any] | None = None


class Turns:
    """The contestant's end: iterate for the numbers of batches to run, answer each with `report`.

    The standard output is kept for answers; what libraries print goes to the standard error.
    """

    def __init__(self, spec: Spec, answers: TextIO) -> None:
        self.spec = spec
        self._answers = answers

    def ready(self, note: str, versions: dict[str, str]) -> None:
        """Say that the graph is loaded, how the contestant works and what with."""
        self.say({"ready": True, "note": note, "versions": versions})

    def absent(self, reason: str) -> None:
        """Say that this contestant cannot take part."""
        self.say({"absent": reason})

    def __iter__(self) -> Iterator[int]:
        while (number := self.wait()) is not None:
            yield number

    def wait(self) -> int | None:
        """The next turn's number of batches; None at the end. Sleeps until then."""
        command, *arguments = (sys.stdin.readline() or "quit").split()
        return int(arguments[0]) if command == "run" else None

    def report(self, batches: float, seconds: float, edges: int) -> None:
        """Answer a turn.

        Args:
            batches: How many were timed; for inference the share of a whole pass.
            seconds: How long they took.
            edges: Edges that were drawn, or walked, in them.
        """
        answer = {"batches": batches, "seconds": seconds, "edges": edges}
        self.say({**answer, "peak_rss": peak_resident_bytes()})

    def take(self, step: Callable[[], int], lead_in: int = 0, share: float = 1.0) -> None:
        """Take all turns with a function that runs a batch and returns its edges.

        Args:
            step: Runs a batch.
            lead_in: Batches that the loader has made ready between two turns. They are run first
                and not timed; no longer than a few seconds, after which it works as ever.
            share: How much a batch is worth; for inference its share of a whole pass.
        """
        for number in self:
            began = time.perf_counter()
            for _ in range(lead_in):
                step()
                if time.perf_counter() - began > _LEAD_IN_SECONDS:
                    break
            began = time.perf_counter()
            edges = sum(step() for _ in range(number))
            self.report(number * share, time.perf_counter() - began, edges)

    def say(self, answer: dict[str, Any]) -> None:
        """Send one line."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def compete(run: Callable[[Turns], None]) -> None:
    """Make this process a contestant: `run` gets ready, says so and takes its turns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = Spec(**json.loads(sys.argv[1]))
    if hasattr(os, "sched_setaffinity"):  # no more cores than it is given, whoever makes threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: spec.threads])
    turns = Turns(spec, answers)
    try:
        run(turns)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        turns.absent(f"{type(error).__name__}: {lines[0]}")
        raise


def peak_resident_bytes() -> int:
    """The most resident memory that this process had, mapped pages of the store included."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent held before this program began
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
