"""Triton's interpreter on the fake GPU: every address that a kernel reads or writes is checked."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from ctypes import byref, c_uint64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime import interpreter

from scripts.fake_gpu.runtime import _library, enqueue

_one_at_a_time = threading.Lock()  # the interpreter has global state
_interpreter = interpreter._interpreter
_ROOM = 1 << 14

_patched: set[str] = set()
_known: tuple[int, tuple[npt.NDArray[np.uint64], ...]] | None = None


class _Memory:
    """The interpreter's loads and stores, at the host's addresses of what devices may address."""

    is_host = False  # a launch on tensors of the CPU: addresses are the host's

    @contextlib.contextmanager
    def of_host(self) -> Iterator[None]:
        self.is_host = True
        try:
            yield
        finally:
            self.is_host = False

    def load(self, places: Any, mask: Any, other: Any, dtype: Any) -> Any:
        return _interpreter.load(_on_host(places, mask), mask, other, dtype)

    def store(self, places: Any, values: Any, mask: Any) -> Any:
        return _interpreter.store(_on_host(places, mask), values, mask)

    def atomic_rmw(self, kind: Any, places: Any, values: Any, mask: Any, order: Any) -> Any:
        return _interpreter.atomic_rmw(kind, _on_host(places, mask), values, mask, order)

    def atomic_cas(self, places: Any, old: Any, new: Any, order: Any) -> Any:
        everywhere = np.ones_like(places, dtype=bool)
        return _interpreter.atomic_cas(_on_host(places, everywhere), old, new, order)

    def __getattr__(self, name: str) -> Any:
        return getattr(_interpreter, name)


_memory = _Memory()
_run_on_cpu = interpreter.InterpretedFunction.run


def _on_host(places: npt.NDArray[Any], mask: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Addresses of the host for a device's.

    Raises:
        RuntimeError: An address is in no live memory that devices may read.
    """
    if _memory.is_host:
        return places
    starts, sizes, shifts = _ranges()
    asked = np.ascontiguousarray(places, dtype=np.uint64)
    at = np.searchsorted(starts, asked, side="right") - 1
    inside = (at >= 0) & (asked - starts[at] < sizes[at])
    wrong = np.broadcast_to(mask, asked.shape).astype(bool) & ~inside
    if wrong.any():
        raise RuntimeError(f"a kernel reads or writes at {hex(int(asked[wrong].flat[0]))}: illegal")
    return np.where(inside, asked + shifts[at], asked)


def _ranges() -> tuple[npt.NDArray[np.uint64], ...]:
    global _known
    changes = _library.fake_changes()
    if _known is None or _known[0] != changes:
        _known = changes, _read_ranges()
    return _known[1]


def _read_ranges() -> tuple[npt.NDArray[np.uint64], ...]:
    room = (c_uint64 * (3 * _ROOM))()
    count = _library.fake_ranges(room, _ROOM)
    assert 0 < count <= _ROOM
    table = np.frombuffer(bytes(room), np.uint64, 3 * count).reshape(-1, 3)
    table = table[np.argsort(table[:, 0])]
    return table[:, 0], table[:, 1], table[:, 2]


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Enqueue a launch: arguments are read now, memory when the stream comes to it."""
    if warmup:
        return
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if not any(tensor.is_cuda for tensor in tensors):
        with _one_at_a_time, _memory.of_host():
            _run_on_cpu(self, *args, grid=grid, warmup=warmup, **kwargs)
        return
    names = inspect.getfullargspec(self.fn).args
    function = self.rewrite()
    executor = interpreter.GridExecutor(function, self.arg_names, grid, self.pre_run_hooks)
    given = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in names})
    converted = {
        name: value if name in executor.constexprs else _argument(name, value)
        for name, value in given.items()
    }
    sizes = grid(converted) if callable(grid) else grid
    sizes = (*sizes, *(1,) * (3 - len(sizes)))
    device = torch.device("cuda", torch.cuda.current_device())
    enqueue(lambda: _execute(function, converted, sizes), device)


def _argument(name: str, value: Any) -> Any:
    """An argument as the interpreter passes it; as Triton's launcher, a device's address.

    Raises:
        RuntimeError: A tensor lies in memory of the host that is not pinned.
    """
    out = interpreter._implicit_cvt(value)
    if isinstance(value, torch.Tensor) and not value.is_cuda and value.numel() > 0:
        address = c_void_p()
        if _library.cudaHostGetDevicePointer(byref(address), c_void_p(value.data_ptr()), 0):
            raise RuntimeError(f"a kernel is given a tensor that no GPU can read: {name}")
        out.handle.data[0] = address.value
    return out


def _execute(function: Any, arguments: dict[str, Any], sizes: tuple[int, ...]) -> None:
    builder = interpreter.interpreter_builder
    with _one_at_a_time:
        _patch(function)
        builder.set_grid_dim(*sizes)
        for index in np.ndindex(*sizes):
            builder.set_grid_idx(*index)
            function(**arguments)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A kernel calls a function."""
    _patch(self.fn)
    return self.rewrite()(*args, **kwargs)


def _patch(function: Any) -> None:
    """Have Triton's language interpreted in the function's module from now on.

    Triton does so again for every call, which takes most of the time.
    """
    module = function.__globals__["__name__"]
    if module not in _patched:
        interpreter._patch_lang(function)
        _patched.add(module)


def install() -> None:
    """Have launches enqueued, and memory checked."""
    interpreter._interpreter = _memory
    interpreter.InterpretedFunction.run = _run
    interpreter.InterpretedFunction.__call__ = _call
