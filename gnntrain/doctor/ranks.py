"""Whether two ranks of this machine can talk to each other: tried, as a run would."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import GnntrainError, RunError
from gnntrain.reporting.tables import Check
from gnntrain.reporting.text import format_seconds

_TIMEOUT = 60.0
_NUM_FLOATS = 1 << 20
_NUM_ROUNDS = 3


def check_two_ranks() -> Check:
    """Start two ranks, on GPUs where there are two, and have them add up 4 MiB."""
    use_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= 2
    backend = "NCCL" if use_gpus else "gloo"
    name = f"two {'GPU' if use_gpus else 'CPU'} ranks"
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        plan = LaunchPlan(2, use_gpus, 1, _TIMEOUT)
        began = time.perf_counter()
        try:
            launch("gnntrain.doctor.ranks:add_up", str(answer), plan, Path(folder))
        except (GnntrainError, OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            hint = (
                "Several ranks cannot run here: look for a firewall on the loopback interface. One "
                "rank needs no connection."
            )
            return Check("problem", name, f"{backend} all-reduce failed: {reason}", hint)
        seconds = json.loads(answer.read_text())
    text = (
        f"{backend} all-reduce of 4 MiB is right, {format_seconds(seconds)}; "
        f"{format_seconds(time.perf_counter() - began)} to start and end both"
    )
    return Check("ok", name, text)


def add_up(context: DistributedContext, answer: str) -> None:
    """One rank's part: add, compare, and, on rank 0, leave the seconds of the fastest round.

    Raises:
        RunError: The sum is wrong.
    """
    seconds = []
    for _ in range(_NUM_ROUNDS):
        values = torch.full((_NUM_FLOATS,), context.rank + 1.0, device=context.device)
        context.barrier()
        began = time.perf_counter()
        total = context.sum(values)
        if not bool((total == context.world_size * (context.world_size + 1) / 2).all()):
            raise RunError(f"The sum over {context.world_size} ranks is {float(total[0])}.")
        seconds.append(time.perf_counter() - began)
    if context.is_main:
        Path(answer).write_text(json.dumps(min(seconds)))
