"""Whether two ranks of this machine can talk to each other: tried, as a run would."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from gnntrain.devices import gpus_here
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.processes import start_server
from gnntrain.errors import GnntrainError, RunError
from gnntrain.reporting.tables import Check
from gnntrain.reporting.text import format_seconds

_TIMEOUT = 60.0
_NUM_FLOATS = 1 << 20


def check_two_ranks() -> Check:
    """Start two ranks, on GPUs where there are two, and have them add up 4 MiB."""
    device = next((kind for kind, number in gpus_here().items() if number > 1), "cpu")
    backend = dist.get_default_backend_for_device(device)
    name = f"two {'CPU' if device == 'cpu' else 'GPU'} ranks"
    began = time.perf_counter()
    if device == "cpu":
        start_server("gnntrain.distributed.launch")  # a rank of a run imports more
    try:
        launch("gnntrain.doctor.ranks:add_up", None, LaunchPlan(2, device, 1, _TIMEOUT))
    except (GnntrainError, OSError, RuntimeError) as error:
        text = f"{backend} all-reduce failed: {' '.join(str(error).split())}"
        hint = (
            "Several ranks cannot run here: look for a firewall on the loopback interface. One "
            "rank needs no connection."
        )
        return Check("problem", name, text, hint)
    seconds = format_seconds(time.perf_counter() - began)
    return Check("ok", name, f"{backend} all-reduce of 4 MiB is right; {seconds} in all")


def add_up(context: DistributedContext, _: object) -> None:
    """One rank's part: add and compare.

    Raises:
        RunError: The sum is wrong.
    """
    total = context.sum(torch.full((_NUM_FLOATS,), context.rank + 1.0, device=context.device))
    if not bool((total == context.world_size * (context.world_size + 1) / 2).all()):
        raise RunError(f"The sum over {context.world_size} ranks is {float(total[0])}.")
