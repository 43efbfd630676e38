"""Host memory that GPUs read over the bus: one copy a machine."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError
from gnntrain.loading.features import as_tensor

# cudaHostRegisterPortable | cudaHostRegisterMapped: without the latter a kernel may not read it.
_FOR_KERNELS = 1 | 2


def pinned(array: npt.NDArray[Any] | Tensor, context: DistributedContext) -> Tensor:
    """A copy of `array` in memory that the machine's ranks share and their GPUs can read.

    Collective among these ranks. On CPU ranks (in tests) the copy is shared, but not pinned.

    Raises:
        RunError: There is not enough memory for the copy.
    """
    source = array if isinstance(array, Tensor) else as_tensor(array)
    on_gpu = context.device.type == "cuda"
    if len(context.machine_ranks) == 1:
        return pinned_room(source.shape, source.dtype).copy_(source) if on_gpu else source.clone()
    try:
        copy = shared_tensor(source.shape, source.dtype, context, None)
    except OSError as error:
        raise RunError(
            f"{source.nbytes / 2**30:.1f} GiB of shared memory cannot be had: {error}.",
            "Free some memory, or write features.placement=memmap sampler.topology=host.",
        ) from error
    if context.is_machine_main:
        copy.copy_(source)
    context.machine_barrier()
    if on_gpu:
        _register(copy)
    return copy


def pinned_room(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """An uninitialised tensor in this rank's own pinned memory; freed with its last view.

    torch's `pin_memory` rounds the size up to a power of two and keeps the memory until the process
    ends. Whole pages are pinned, which hold this tensor only.

    Raises:
        RunError: The system refuses to pin that much.
    """
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.empty(*shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(pages, np.uint8)
    tensor = torch.from_numpy(memory).view(dtype).view(*shape)
    _register(tensor)
    # The tensor's storage holds the array, and with it every view of the tensor does.
    weakref.finalize(memory, _unregister, tensor.data_ptr()).atexit = False
    return tensor


def _register(tensor: Tensor) -> None:
    """Register the tensor's pages with CUDA, so that the GPU can read them."""
    if tensor.numel() == 0:
        return
    code = int(_cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, _FOR_KERNELS))
    if code != 0:
        raise RunError(
            f"{tensor.nbytes / 2**30:.1f} GiB of host memory could not be pinned: CUDA error "
            f"{code}.",
            "Raise the limit of locked memory (ulimit -l), or write features.placement=memmap "
            "sampler.topology=host.",
        )


def _unregister(address: int) -> None:
    torch.cuda.synchronize()  # kernels may be reading there
    _cudart().cudaHostUnregister(address)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types here
