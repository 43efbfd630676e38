"""Host memory that GPUs read over the bus: one copy a machine."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.distributed import cuda_runtime
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.cuda_runtime import CudaError
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError


class PinningError(RunError):
    """The system does not give so much memory that a GPU can read."""


def pinned(source: Tensor, context: DistributedContext) -> Tensor:
    """A copy of `source` in memory that the machine's ranks share and their GPUs can read.

    Collective among all ranks. On CPU ranks (in tests) the copy is shared, but not pinned.

    Raises:
        PinningError: On all ranks, where one of them cannot have the memory.
    """
    on_gpu, problem = context.device.type == "cuda", ""
    copy = torch.empty(0)
    try:
        if len(context.machine_ranks) > 1:
            copy = shared_tensor(source.shape, source.dtype, context, None)
            if on_gpu and copy.numel():
                memory = _registered(copy.reshape(-1).view(torch.uint8).numpy())
                copy = memory.view(source.dtype).view(source.shape)
        else:
            make = empty_pinned if on_gpu else torch.empty
            copy = make(source.shape, dtype=source.dtype)
    except PinningError as error:
        problem = error.message
    except OSError as error:
        problem = f"{readable_bytes(source.nbytes)} of shared memory cannot be had: {error}."
    # Where the graph lies decides about the batches and the collectives of all ranks.
    if problems := list(filter(None, context.gather(problem))):
        raise PinningError(problems[0], _HINT)
    if context.is_machine_main:
        copy.copy_(source)
    context.on_machine.barrier()
    return copy


def empty_pinned(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """An uninitialised tensor in this rank's own pinned memory; freed with its last view.

    torch's `pin_memory` rounds the size up to a power of two and keeps the memory until the process
    ends. Whole pages are pinned, which hold this tensor only.

    Raises:
        PinningError: The system refuses to pin that much.
    """
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.empty(*shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _registered(np.frombuffer(pages, np.uint8)).view(dtype).view(*shape)


def device_addresses(held: Sequence[Tensor], device: torch.device) -> Tensor:
    """The addresses of matrices on GPUs or in (for a GPU: pinned) host memory, for kernels of
    `device`; see `LazyFeatures.parts`."""
    addresses = [
        cuda_runtime.device_address(part.data_ptr())
        if device.type == "cuda" and part.device.type == "cpu" and part.numel()
        else part.data_ptr()
        for part in held
    ]
    return torch.tensor(addresses, dtype=torch.int64, device=device)


def readable_bytes(num_bytes: int) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.1f} MiB"


_HINT = (
    "Raise the limit of locked memory (ulimit -l) or of the container, or write "
    "features.placement=memmap sampler.topology=host."
)


def _registered(memory: npt.NDArray[np.uint8]) -> Tensor:
    """A tensor over whole pages, which are pinned as long as it or a view of it is held."""
    tensor = torch.from_numpy(memory)
    address = tensor.data_ptr()
    try:
        cuda_runtime.register_host_memory(address, tensor.nbytes)
    except CudaError as error:
        raise PinningError(
            f"{readable_bytes(tensor.nbytes)} of host memory cannot be pinned: {error.message}",
            _HINT,
        ) from error
    # The tensor's storage holds the array, and with it every view of the tensor does.
    weakref.finalize(memory, _unregister, address).atexit = False
    return tensor


def _unregister(address: int) -> None:
    with suppress(CudaError, RuntimeError):  # after a failed kernel CUDA refuses every call
        torch.cuda.synchronize()  # kernels may be reading there
        cuda_runtime.unregister_host_memory(address)
