"""A rank that fails on purpose, each time the run is started in another place."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnntrain.distributed.context import DistributedContext
from gnntrain.job import Job
from gnntrain.loading.loader import SampledLoader
from gnntrain.training import checkpoint
from gnntrain.training.graph_access import WholeGraph
from gnntrain.training.update import Update
from gnntrain.worker import train_rank

PLACES = ("start", "sampling", "all-reduce", "evaluation", "checkpoint")


@dataclass(frozen=True)
class Faults:
    """What goes wrong at each start: (place, what), on rank `rank`."""

    job: Job
    faults: tuple[tuple[str, str], ...]
    rank: int
    counter: Path


def train_with_faults(context: DistributedContext, payload: Faults) -> None:
    """`train_rank`, but for a fault of this start."""
    if context.rank == payload.rank:
        num_starts = len(payload.counter.read_text()) if payload.counter.exists() else 0
        payload.counter.write_text("x" * (num_starts + 1))
        if num_starts < len(payload.faults):
            break_down(*payload.faults[num_starts])
    train_rank(context, payload.job)


def break_down(place: str, what: str) -> None:
    """Have `what` happen at the third visit of `place` (at once at the start)."""
    if place == "start":
        happen(what)
    elif place == "sampling":
        patch(SampledLoader, "_batch", what)
    elif place == "all-reduce":
        # Ended from aside, while the main thread exchanges gradients with the others.
        patch(Update, "__call__", what, from_aside=True)
    elif place == "evaluation":
        patch(WholeGraph, "in_edges", what)
    else:
        patch(checkpoint, "save_checkpoint", what)


def patch(owner: Any, name: str, what: str, *, from_aside: bool = False) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    num_visits = 0

    def visited(*arguments: Any, **options: Any) -> Any:
        nonlocal num_visits
        num_visits += 1
        if num_visits == 3 and from_aside:
            threading.Timer(0.001, happen, [what]).start()
        elif num_visits == 3:
            happen(what)
        return original(*arguments, **options)

    setattr(owner, name, visited)


def happen(what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "memory":
        raise MemoryError("Unable to allocate 71.5 GiB")
    raise OSError(errno.EIO, "Input/output error")
