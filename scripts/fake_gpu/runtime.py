"""The fake CUDA runtime as Python sees it: memory, streams, and where the host waits."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

_library = ctypes.CDLL("libcudart.so.13")  # preloaded
_library.fake_host_address.restype = ctypes.c_void_p
_library.fake_host_address.argtypes = [ctypes.c_void_p]
_library.fake_enqueue.argtypes = [ctypes.c_void_p, ctypes.c_long]
_library.fake_ranges.argtypes = [ctypes.c_void_p, ctypes.c_long]
_library.fake_ranges.restype = ctypes.c_long
_library.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]

_ILLEGAL_ADDRESS = 700

# In which a wait costs time, by a file of the stack.
_PHASES = {
    "training/update.py": "step",
    "training/cuda_graph.py": "step",
    "loading/transfer.py": "loader",
}

_calls: dict[int, tuple[Callable[[], object], bool]] = {}
_numbers = itertools.count()
_waits: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by phase, by place
_lock = threading.Lock()


def enqueue(call: Callable[[], object], device: torch.device) -> None:
    """Have a stream's thread call a function, after all that the current stream has to do."""
    number = next(_numbers)
    stream = torch.cuda.current_stream(device)
    is_captured = torch.cuda.is_current_stream_capturing()
    _calls[number] = (call, is_captured)
    with torch.cuda.device(device):
        _library.fake_enqueue(stream.cuda_stream, number)


def wait_for_stream(device: torch.device) -> None:
    """Wait until the current stream has done its work."""
    handle = torch.cuda.current_stream(device).cuda_stream
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the host waits for a stream while a CUDA graph is captured")
    with torch.cuda.device(device):
        _library.cudaStreamSynchronize(handle)


def on_host(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of the CPU, which does not keep it alive."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    address = _library.fake_host_address(storage.data_ptr())
    alias = torch._C._construct_storage_from_data_pointer(
        address, torch.device("cpu"), storage.nbytes()
    )
    out = torch.empty(0, dtype=tensor.dtype)
    with torch._C._AutoDispatchBelowAutograd():
        out.set_(alias, tensor.storage_offset(), tensor.shape, tensor.stride())
    return out


def host_wait(what: str) -> None:
    """Note that the host waits for the device: in which phase, and the place in our code."""
    frames = list(_frames(sys._getframe(1)))
    phase = next((name for part, name in _PHASES.items() for f in frames if part in f), "other")
    with _lock:
        _waits[phase][f"{what} | {' < '.join(frames[:4])}"] += 1


def _frames(frame: FrameType | None) -> Iterator[str]:
    """The lines of gnntrain on the stack, the innermost first."""
    while frame is not None:
        path = frame.f_code.co_filename
        if "/gnntrain/" in path:
            yield f"{path.rpartition('/gnntrain/')[2]}:{frame.f_lineno}"
        frame = frame.f_back


def write_report() -> None:
    """Write this process's waits into the folder FAKE_GPU_REPORT, if it is given."""
    folder = os.environ.get("FAKE_GPU_REPORT")
    if folder and _waits:
        path = Path(folder) / f"{os.getpid()}.json"
        waits = {phase: dict(counts.most_common()) for phase, counts in _waits.items()}
        path.write_text(json.dumps(waits, indent=1))


def _run(number: int) -> None:
    call, is_captured = _calls[number]
    if not is_captured:
        del _calls[number]
    try:
        with torch._C._AutoDispatchBelowAutograd():
            call()
    except BaseException:
        print("fake GPU: a kernel failed", file=sys.stderr)
        traceback.print_exc()
        _library.fake_fail(_ILLEGAL_ADDRESS)


_runner = ctypes.CFUNCTYPE(None, ctypes.c_long)(_run)
_library.fake_set_runner(_runner)
