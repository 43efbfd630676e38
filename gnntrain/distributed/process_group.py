"""The process group of a run's ranks: NCCL on GPUs of NVIDIA and AMD, XCCL on those of Intel, gloo.

Groups of GPUs are bound to each rank's device: NCCL connects the ranks at once, barriers and groups
of some ranks take this device, and a mistake shows before the first step.
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.cuda_runtime import pci_address
from gnntrain.distributed.run_control import is_timeout
from gnntrain.errors import RunError, TransientError, UserError

_LEAST_HEARTBEAT = 60.0
_HINT = (
    "Set NCCL_DEBUG=INFO: its lines name what failed. If it is an address that cannot be reached, "
    "NCCL_SOCKET_IFNAME and NCCL_IB_DISABLE choose another way."
)


def init_process_group(
    context: DistributedContext, store: Any, seconds: float
) -> DistributedContext:
    """Meet the other ranks over a TCPStore that all reach, and return the context with its groups.

    Collective. A rank waits so many seconds for the others, here and in each collective.

    Raises:
        UserError: This machine does not have the context's address.
        RunError: The ranks cannot connect.
        torch.distributed.DistError: Another rank has not come in time.
    """
    limit = timedelta(seconds=seconds)
    host = ipaddress.ip_address(context.host.partition("%")[0])
    # Nothing listens on other interfaces, and the resolver need not know the host's own name.
    found = (
        name
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
        and ipaddress.ip_address(one.address.partition("%")[0]) == host
    )
    interface = next(found, None)
    if interface is None:
        raise UserError(
            f"No network interface of this machine has the address {context.host}.",
            "Set MASTER_ADDR to an address of an interface.",
        )
    defaults = {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": f"={interface}",  # without "=" also those whose names begin like it
        # A rank that has waited for too long ends then, not after up to a minute for a dump; and it
        # ends also where the thread that looks at the time is stuck itself.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(math.ceil(max(_LEAST_HEARTBEAT, seconds))),
    }
    for variable, value in defaults.items():
        os.environ.setdefault(variable, value)
    backend = dist.get_default_backend_for_device(context.device)
    name, rank, size = backend.upper(), context.rank, context.world_size
    bound = None if backend == dist.Backend.GLOO else context.device
    if bound is not None:
        # Once all are here, the library connects them, and that has no time limit of its own.
        store.set(f"present/{rank}", "")
        store.wait([f"present/{other}" for other in range(size)], limit)
    late = TransientError(f"{name} has not connected the ranks within {seconds:g} s.", _HINT)
    with context.control.must_end_within(seconds if bound else math.inf, late):
        try:
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=limit, device_id=bound
            )
            return context.among(range(size), seconds) or context
        except dist.DistBackendError as error:
            if bound is None or is_timeout(error):
                raise
            reason = str(error).strip().splitlines()[-1]
            raise RunError(
                f"{name} cannot connect rank {rank} to the others: {reason}", _HINT
            ) from error


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
    """Refuse two processes on one GPU, with which NCCL does not work, by a UserError: the
    `gpu_address` and the machine of each."""
    found: dict[tuple[int, str], int] = {}
    for process, (machine, address) in enumerate(zip(machines, addresses, strict=True)):
        if address and (first := found.setdefault((machine, address), process)) != process:
            raise UserError(
                f"Processes {first} and {process} have the same GPU (PCI address {address}), or "
                "slices (MIG) of it: each rank needs a GPU of its own.",
                "Start as many ranks a machine as it has GPUs; show each of them all GPUs of its "
                "machine, or one of its own (CUDA_VISIBLE_DEVICES).",
            )
