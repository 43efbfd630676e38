"""The process group of a run's ranks: NCCL on GPUs of NVIDIA and AMD, XCCL on those of Intel, gloo.

Groups of GPUs are bound to each rank's device: NCCL connects the ranks at once, barriers and groups
of some ranks take this device, and a mistake shows before the first step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.cuda_runtime import pci_address
from gnntrain.distributed.run_control import is_timeout
from gnntrain.distributed.tcp_store import interface_of
from gnntrain.errors import RunError, TransientError, UserError

_LEAST_HEARTBEAT = 60.0
_HINT = (
    "Set NCCL_DEBUG=INFO: its lines name what failed. If it is an address that cannot be reached, "
    "NCCL_SOCKET_IFNAME and NCCL_IB_DISABLE choose another way."
)


def init_process_group(
    context: DistributedContext, store: TCPStore, limit: timedelta
) -> dist.ProcessGroup | None:
    """Meet the other ranks. Collective.

    Args:
        context: This rank, alone yet.
        store: Reached by all ranks.
        limit: How long a rank waits for the others, here and in each collective.

    Returns:
        The group of this machine's ranks; None: all ranks are on one.

    Raises:
        RunError: The ranks cannot connect.
        torch.distributed.DistError: Another rank has not come in time.
    """
    _set_defaults(interface_of(context.host), limit.total_seconds())
    backend = dist.get_default_backend_for_device(context.device)
    if backend == dist.Backend.GLOO:
        return _connect(context, store, limit, backend, None)
    # Once all are here, the library connects them, and that has no time limit of its own.
    store.set(_present(context.rank), "")
    store.wait([_present(rank) for rank in range(context.world_size)], limit)
    seconds = limit.total_seconds()
    message = f"{backend.upper()} has not connected the ranks within {seconds:g} s."
    late = TransientError(message, _HINT)
    with context.control.must_end_within(seconds, late):
        try:
            return _connect(context, store, limit, backend, context.device)
        except dist.DistBackendError as error:
            if is_timeout(error):
                raise
            reason = str(error).strip().splitlines()[-1]
            message = f"{backend.upper()} cannot connect rank {context.rank} to the others: "
            raise RunError(f"{message}{reason}", _HINT) from error


def _connect(
    context: DistributedContext,
    store: TCPStore,
    limit: timedelta,
    backend: str,
    bound: torch.device | None,
) -> dist.ProcessGroup | None:
    """Make the group of all ranks and those of the machines; see `init_process_group`."""
    rank, world_size = context.rank, context.world_size
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=limit, device_id=bound
    )
    if context.num_machines == 1:
        return None
    # Every rank takes part in making the group of every machine.
    groups: list[dist.ProcessGroup] = [
        dist.new_group(list(context.ranks_of(m)), limit) for m in range(context.num_machines)
    ]
    return groups[context.machine]


def leave_process_group() -> None:
    """Leave the group, if there is one, after all ranks have met for the last time. Collective."""
    if dist.is_initialized():
        dist.destroy_process_group()


def abort_process_group() -> None:
    """Leave the group, if there is one, where other ranks may be gone, or wait in a collective."""
    if not dist.is_initialized():
        return
    if dist.get_backend() == dist.Backend.GLOO:
        dist.destroy_process_group()
        return
    with suppress(RuntimeError):  # of a GPU that no longer works: the rank has reported why it ends
        # To destroy NCCL's group would wait for collectives that others do not enter any more.
        dist.distributed_c10d._abort_process_group()


def gpu_address(device: torch.device) -> str | None:
    """Where a GPU sits in its machine, the same for all slices (MIG) of a GPU; None: not known."""
    return pci_address(device.index) if device.type == "cuda" else None


def refuse_shared_gpus(addresses: Sequence[str | None], machines: Sequence[int]) -> None:
    """Refuse two processes on one GPU, with which NCCL does not work.

    Args:
        addresses: Of each process's first GPU, see `gpu_address`.
        machines: On which they are.

    Raises:
        UserError: Two have the same GPU.
    """
    found: dict[tuple[int, str], int] = {}
    for process, (machine, address) in enumerate(zip(machines, addresses, strict=True)):
        if address is None:
            continue
        first = found.setdefault((machine, address), process)
        if first != process:
            raise UserError(
                f"Processes {first} and {process} have the same GPU (PCI address {address}), or "
                "slices (MIG) of it: each rank needs a GPU of its own.",
                "Start as many ranks a machine as it has GPUs; show each of them all GPUs of its "
                "machine, or one of its own (CUDA_VISIBLE_DEVICES).",
            )


def _set_defaults(interface: str, seconds: float) -> None:
    """Environment variables of the libraries, where the user has set none."""
    defaults = {
        # Nothing listens on other interfaces, and the resolver need not know the host's own name.
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",  # without "=" also those whose names begin like it
        # A rank that has waited for too long ends then, not after up to a minute for a dump; and it
        # ends also where the thread that looks at the time is stuck itself.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(math.ceil(max(_LEAST_HEARTBEAT, seconds))),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _present(rank: int) -> str:
    return f"present/{rank}"
