"""A process group that notes every collective of a whole run, in each rank, and lets gloo do it.

    with recorded(folder):
        train(config)
    check(folder)

What NCCL needs of the ranks, gloo often forgives: here it is checked.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from gnntrain.distributed import launch as launching
from gnntrain.distributed import processes

_start_process = processes.start_process
_FOLDER = "GNNTRAIN_TEST_COLLECTIVES"
_GIVEN = {"allgather": 1, "gather": 1}  # the position of what a rank gives; else 0
_OBJECT_COLLECTIVES = ("all_gather_object", "broadcast_object_list", "gather_object")
_of_objects: ContextVar[bool] = ContextVar("_of_objects", default=False)
_POINT_TO_POINT = ("send", "recv")
_NCCL_TYPES = (
    *("bool", "uint8", "int8", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


class Call(NamedTuple):
    """One collective of one rank."""

    group: tuple[int, ...]  # its ranks
    name: str  # as torch's process groups call it
    tensors: tuple[tuple[tuple[int, ...], str], ...]  # shape and type of what the rank gives
    peer: int  # the root, or the other rank of a message; −1: there is none
    device: str  # the type of the tensors'
    thread: str

    @classmethod
    def read(cls, line: str) -> Call:
        group, name, tensors, peer, device, thread = json.loads(line)
        shapes = tuple((tuple(shape), dtype) for shape, dtype in tensors)
        return cls(tuple(group), name, shapes, peer, device, thread)

    @property
    def matched(self) -> tuple[Any, ...]:
        """What must be the same on all ranks."""
        return self.group, self.name, self.tensors, self.peer


class RecordingGroup(dist.ProcessGroup):
    """Gloo's group, with notes in a file. As NCCL's, a group of GPUs takes tensors of this rank's
    GPU alone."""

    _gloo: Any

    def __init__(self, options: Any, file: Path, device: torch.device) -> None:
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        self._file, self._device = file, device
        store, rank, size = options.store, options.group_rank, options.group_size
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options.timeout)

    def getBackendName(self) -> str:
        return "recording"

    def _note(self, name: str, given: Sequence[Tensor], peer: int = -1) -> None:
        told = [(list(t.shape), str(t.dtype).removeprefix("torch.")) for t in given]
        device = given[0].device.type if given else "none"
        call = Call(self._ranks, name, tuple(told), peer, device, threading.current_thread().name)  # type: ignore[arg-type]
        with self._file.open("a") as file:
            file.write(json.dumps(call) + "\n")

    def _on_host(self, value: Any) -> Any:
        """The tensors' memory as gloo takes it."""
        if isinstance(value, list | tuple):
            return [self._on_host(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        is_object = value.device.type == "cpu" and _of_objects.get()
        allowed = is_object or value.device == self._device
        assert allowed, f"a tensor on {value.device} in a group of {self._device}"
        return getattr(value, "host", value)

    def barrier(self, opts: Any) -> Any:  # type: ignore[override]
        self._note("barrier", [])
        return self._gloo.barrier(opts)

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        self._note("send", tensors, self._ranks[peer])
        return self._gloo.send(self._on_host(tensors), peer, tag)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        self._note("recv", tensors, self._ranks[peer])
        return self._gloo.recv(self._on_host(tensors), peer, tag)


def _noted(name: str) -> Any:
    def call(self: RecordingGroup, *arguments: Any) -> Any:
        *tensors, options = arguments
        root = getattr(options, "rootRank", -1)
        self._note(name, tensors[_GIVEN.get(name, 0)], root)
        return getattr(self._gloo, name)(*map(self._on_host, arguments))

    return call


for _name in ("allreduce", "broadcast", "allgather", "gather", "reduce", "allgather_coalesced"):
    setattr(RecordingGroup, _name, _noted(_name))


def run_rank(rank: int, *arguments: Any) -> None:
    """Be a rank that notes its collectives."""
    file, kind = Path(os.environ[_FOLDER]) / f"{rank}.jsonl", plan_of(arguments).device
    if kind == "sim":
        import_module("torch._prims.rng_prims")  # or torch makes no generator
        from tests.simulated_device import register_present

        register_present()
    for name in _OBJECT_COLLECTIVES:
        setattr(dist, name, _marked(getattr(dist, name)))
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank % 2)
    dist.Backend.register_backend(
        "recording", lambda options, _: RecordingGroup(options, file, device), True, devices=[kind]
    )
    init = dist.init_process_group
    dist.init_process_group = lambda _, **given: init("recording", **given)
    launching._run_rank(rank, *arguments)


def _marked(function: Callable[..., None]) -> Callable[..., None]:
    """Torch's function, whose tensors hold objects: torch puts them on a group's device itself."""

    @wraps(function)
    def marked(*arguments: Any, **options: Any) -> None:
        token = _of_objects.set(True)
        try:
            function(*arguments, **options)
        finally:
            _of_objects.reset(token)

    return marked


def plan_of(arguments: Sequence[Any]) -> launching.LaunchPlan:
    """The plan among the arguments of a rank."""
    return next(given for given in arguments if isinstance(given, launching.LaunchPlan))


def _forked(target: Any, arguments: Sequence[Any], *, uses_gpu: bool) -> Any:  # noqa: ARG001
    return _start_process(target, arguments, uses_gpu=False)


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """The ranks that start meanwhile write their collectives to the folder."""
    folder.mkdir(exist_ok=True)
    with (
        mock.patch.dict(os.environ, {_FOLDER: str(folder)}),
        mock.patch.object(launching, "_run_rank", run_rank),
        # A simulated GPU survives a fork, which is faster.
        mock.patch.object(processes, "start_process", _forked),
    ):
        yield


def calls_of(folder: Path) -> dict[int, list[Call]]:
    """The collectives of each rank."""
    return {
        int(file.stem): [Call.read(line) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("*.jsonl"))
    }


def check(folder: Path) -> dict[int, list[Call]]:
    """Check what NCCL needs; return the collectives of each rank."""
    calls = calls_of(folder)
    for mine in calls.values():
        _check_alone(mine)
    for (a, of_a), (b, of_b) in combinations(calls.items(), 2):
        # Also the order of collectives in different groups: two ranks in two groups would wait for
        # each other for ever.
        first, second = (
            [call.matched for call in of if {a, b} <= set(call.group) and not _is_message(call)]
            for of in (of_a, of_b)
        )
        for one, other in zip(first, second, strict=False):
            assert one == other, f"ranks {a} and {b}: {one}, {other}"
        assert len(first) == len(second), f"ranks {a} and {b}: {len(first)}, {len(second)}"
    _check_messages(calls)
    return calls


def _check_alone(calls: Sequence[Call]) -> None:
    for call in calls:
        # A GPU's backward runs in a thread of torch's own, for which the main one waits.
        assert call.thread == "MainThread" or call.thread.startswith("Dummy"), call
        for shape, dtype in call.tensors:
            assert dtype in _NCCL_TYPES, f"{call.name} of {dtype} {shape}"


def _is_message(call: Call) -> bool:
    return call.name in _POINT_TO_POINT


def _check_messages(calls: dict[int, list[Call]]) -> None:
    """What a rank receives from another one is what that sends, in this order."""
    sent, received = defaultdict(list), defaultdict(list)
    for rank, mine in calls.items():
        for call in filter(_is_message, mine):
            if call.name == "send":
                sent[rank, call.peer].append(call.tensors)
            else:
                received[call.peer, rank].append(call.tensors)
    assert sent == received


def names_of(calls: dict[int, list[Call]]) -> Counter[str]:
    """How often each collective was called by rank 0."""
    return Counter(call.name for call in calls[0])
