"""Memory of this process; where it runs out, a message with the keys to lower."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch

from gnntrain.config import TrainerConfig
from gnntrain.errors import RunError, TransientError
from gnntrain.loading.loader import FullGraphLoader, Loader

# Messages of torch's CPU allocator (RuntimeError) and of the operating system (OSError).
_CPU_WORDS = ("can't allocate memory", "not enough memory", "Cannot allocate memory")
# Errors of drivers, and of Apple's GPUs, that are no torch.OutOfMemoryError.
_GPU_WORDS = (
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "MPS backend out of memory",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "UR_RESULT_ERROR_OUT_OF_RESOURCES",
)


@contextmanager
def memory_explained(where: Callable[[], str], hint: str) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError with the place and a hint."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        kind = lacking_memory(error)
        if kind is None:
            raise
        said = " ".join(str(error).split(". ")[0].split()) or type(error).__name__
        # The machine's memory is other programs' too: another try may find more.
        raised = TransientError if kind == "Memory" else RunError
        raise raised(f"{kind} ran out {where()}: {said}.", hint) from error


def lacking_memory(error: BaseException) -> str | None:
    """The memory that ran out, by the error; None for other errors."""
    if isinstance(error, torch.OutOfMemoryError):
        return "GPU memory"
    said = str(error)
    if isinstance(error, MemoryError) or any(words in said for words in _CPU_WORDS):
        return "Memory"
    return "GPU memory" if any(words in said for words in _GPU_WORDS) else None


def training_hint(loader: Loader, config: TrainerConfig) -> str:
    """The keys to lower if a training step runs out of memory."""
    if isinstance(loader, FullGraphLoader):
        return "Set sampler=neighbor, which trains in mini-batches, or lower model.hidden_channels."
    unpadded = (
        " Or set trainer.cuda_graph=false: batches are not padded then." * loader.records_steps
    )
    return (
        f"Lower trainer.batch_size (now {config.batch_size}), sampler.fan_outs or "
        f"model.hidden_channels.{unpadded}"
    )


def resident_bytes() -> int:
    """Current resident memory of this process, shared pages included."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """The most resident memory this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
