"""Host memory that GPUs read over the bus: one copy a machine."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.distributed import cuda_runtime
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.cuda_runtime import CudaError
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError


class PinningError(RunError):
    """The system does not give so much memory that a GPU can read."""


def pinned(array: npt.NDArray[Any] | Tensor, context: DistributedContext) -> Tensor:
    """A copy of `array` in memory that the machine's ranks share and their GPUs can read.

    Collective among all ranks. On CPU ranks (in tests) the copy is shared, but not pinned.

    Raises:
        PinningError: On all ranks, where one of them cannot have the memory.
    """
    source = array if isinstance(array, Tensor) else as_tensor(array)
    copy, problem = None, ""
    try:
        copy = _own_copy(source, context)
    except PinningError as error:
        problem = error.message
    # Where the graph lies decides about the batches and the collectives of all ranks.
    problems = list(filter(None, context.gather(problem)))
    if copy is None or problems:
        raise PinningError(problems[0], _HINT)
    if context.is_machine_main:
        copy.copy_(source)
    context.machine_barrier()
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
    """The addresses of matrices for kernels of `device`, see `LazyFeatures.parts`.

    Args:
        held: On GPUs; or in host memory, there pinned if `device` is a GPU.
    """
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


def _own_copy(source: Tensor, context: DistributedContext) -> Tensor:
    """Memory of the source's form, uninitialised, pinned by this rank if that has a GPU."""
    on_gpu = context.device.type == "cuda"
    if len(context.machine_ranks) == 1:
        make = empty_pinned if on_gpu else torch.empty
        return make(source.shape, dtype=source.dtype)
    try:
        shared = shared_tensor(source.shape, source.dtype, context, None)
    except OSError as error:
        raise PinningError(
            f"{readable_bytes(source.nbytes)} of shared memory cannot be had: {error}.", _HINT
        ) from error
    if not on_gpu or shared.numel() == 0:
        return shared
    memory = _registered(shared.reshape(-1).view(torch.uint8).numpy())
    return memory.view(source.dtype).view(source.shape)


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
