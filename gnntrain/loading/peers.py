"""Whether the GPUs of a machine read each other's memory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.process_group import gpu_address

# torch's allocator under these settings gives memory that other processes cannot map, or only with
# rights that containers seldom have.
_UNSHARED = re.compile(r"expandable_segments:\s*true|backend:\s*cudaMallocAsync", re.IGNORECASE)
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def why_no_peers(context: DistributedContext) -> str:
    """Why a rank's GPU cannot read the memory of another one of its machine; "": all can.

    Collective: all ranks get the same answer.
    """
    addresses = context.gather(gpu_address(context.device))
    own = context.machine_ranks
    others = [addresses[rank] for rank in own if rank != context.rank]
    return next(filter(None, context.gather(_why_not(context.device, others))), "")


def _why_not(device: torch.device, others: Sequence[str | None]) -> str:
    if device.type != "cuda":
        return "only GPUs of NVIDIA and AMD do"
    if setting := next(filter(None, map(_unshared, _SETTINGS)), None):
        return f"with {setting} torch's memory cannot be shared"
    visible = {gpu_address(torch.device("cuda", i)): i for i in range(torch.cuda.device_count())}
    if not visible.keys() >= set(others):
        return "each rank sees its own GPU alone"
    reads = [torch.cuda.can_device_access_peer(device, visible[other]) for other in others]
    return "" if all(reads) else "these do not"


def _unshared(variable: str) -> str | None:
    found = _UNSHARED.search(os.environ.get(variable, ""))
    return found and f"{variable}={found[0]}"
