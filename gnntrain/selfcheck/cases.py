"""The cases of the self-check: kernels for GPUs, whose results are compared with references in
processes of their own. What kernels do to these does not reach the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute.examples import awkward_inputs
from gnntrain.compute.ops import OPERATORS
from gnntrain.compute.selection import HOST_MEMORY, SAMPLER
from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.loading.pinned import PinningError, device_addresses, empty_pinned
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.sampling.block import Sample
from gnntrain.sampling.cpu import CPUSampler

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CASE_SECONDS = 30
"""A case that takes longer hangs; compiling its kernels takes a few seconds."""
_SPREAD = "rows in several matrices"
# The modules of this process, not those of the current directory.
_CODE = (
    "import signal, sys; signal.alarm(60); "
    "end = sys.argv.index('--'); sys.path[:] = sys.argv[end + 1 :]; "
    "from gnntrain.selfcheck.cases import child; child(*sys.argv[1:end])"
)
# No memory, no room on a disk, a compiler that fails: nothing that the kernel has done.
_OF_THE_MACHINE = (
    *(MemoryError, torch.OutOfMemoryError, OSError),
    *(subprocess.SubprocessError, PinningError),
)


class WrongResultError(Exception):
    """A kernel's result is not that of its reference."""


class Case(NamedTuple):
    """A kernel to try: that of an operator, or one of `selection`'s further names. Names of cases
    are distinct; without floating-point numbers they have no precision. `run` gives the error on a
    device, see `compare`."""

    name: str
    kernel: str
    precision: str | None
    run: Callable[[torch.device], float]


class Outcome(NamedTuple):
    """What came of a case: what is wrong, if anything; else the error, see `compare`; and whether
    another try would end alike. It may not without memory, or after a hang, which may have been a
    machine with much else to do."""

    fault: str | None = None
    error: float = 0.0
    is_lasting: bool = True


def all_cases() -> list[Case]:
    """Every case: first those of the sampler, which each run needs, then the operators'
    examples."""
    cases, first = list[Case](), next(awkward_inputs())
    draws: dict[str, dict[str, Any]] = {
        "fan-outs 4, 3": {"fan_outs": (4, 3)},
        "fan-outs 65, 2": {"fan_outs": (65, 2), "index_type": "int64"},
        "all in-neighbours": {"fan_outs": (-1, 2)},
        "with replacement": {"fan_outs": (3, 2), "is_repeating": True},
        "padded": {"fan_outs": (3, 2), "is_padded": True},
        "padded, fan-out 65": {"fan_outs": (65,), "is_padded": True},
    }
    for name, draw in draws.items():
        cases.append(Case(f"{SAMPLER}: {name}", SAMPLER, None, partial(_try_sampler, **draw)))
    for precision, dtype in PRECISIONS.items():
        for name, operator in OPERATORS.items():
            if not operator.has("cuda") or dtype not in operator.types:
                continue
            for options in operator.examples(first):
                run = partial(_try_operator, name, options, dtype)
                cases.append(Case(f"{name}: {options}, {precision}", name, precision, run))
                if options == _SPREAD:
                    case, run = f"{HOST_MEMORY}: {name}, {precision}", partial(run, is_pinned=True)
                    cases.append(Case(case, HOST_MEMORY, precision, run))
    return cases


def try_cases(
    cases: Sequence[Case], device: str, deadline: float, known: dict[str, Outcome]
) -> str | None:
    """Try cases in order, in a process, see `child`; `known` gets the outcomes by name.

    A process that ends within a case has found a fault, and another one goes on behind it, but for
    further cases of kernels that have a fault. A hang counts for good only if the case was in
    `known` before. A case that is not done by the deadline, of `time.monotonic`, gets no outcome.

    Returns:
        Why a process did not start; None: all did.
    """
    before, left = set(known), list(cases)
    while left:
        seconds = min(max(0.0, deadline - time.monotonic()), 1e6)  # which `poll` takes
        names, is_over = [case.name for case in left], False
        with tempfile.TemporaryFile("w+", errors="replace") as printed:
            try:
                done = subprocess.run(
                    [sys.executable, "-c", _CODE, device, *names, "--", *sys.path],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=printed,
                    timeout=seconds,
                    start_new_session=True,  # Ctrl-C in a terminal does not reach it
                    check=False,
                )
                code, lines = done.returncode, done.stdout.splitlines()
            except subprocess.TimeoutExpired as error:
                code, lines, is_over = 0, (error.stdout or b"").splitlines(), True
            printed.seek(0)
            last = printed.read().strip().splitlines()[-1:]
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        ending = ": ".join([f"ends its process: {ending}", *last])[:300]
        if not lines:
            return None if is_over else ending
        outcomes = [Outcome(*json.loads(line)) for line in lines[1:] if line.endswith(b"]")]
        if code != 0:
            is_lasting = code != -signal.SIGKILL  # by the system or a person
            if code == -signal.SIGALRM:
                ending = "hangs: no result in time"
                is_lasting = names[len(outcomes)] in before
            outcomes.append(Outcome(ending, is_lasting=is_lasting))
        known.update(zip(names, outcomes, strict=False))
        if is_over:
            return None
        faulty = {
            case.kernel for case, one in zip(left, outcomes, strict=False) if one.fault is not None
        }
        left = [case for case in left[len(outcomes) :] if case.kernel not in faulty]
    return None


def child(device_name: str, *names: str) -> None:
    """Try the cases of these names, up to a fault: after an illegal access, for example, a process
    can compute nothing. A line says that it begins, then one of JSON how each case ended.

    The process is ended by a signal if a case hangs, and by a broken pipe if its parent has ended.
    """
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # where a compiler may print
    cases = {case.name: case for case in all_cases()}
    device = torch.device(device_name)
    torch.ones(1, device=device)
    lines.write("started\n")
    for name in names:
        signal.alarm(CASE_SECONDS)
        outcome = tried(cases[name], device)
        lines.write(f"{json.dumps(outcome)}\n")
        if outcome.fault is not None:
            break
    os._exit(0)  # not by way of CUDA, which may be unable to clean up


def tried(case: Case, device: torch.device) -> Outcome:
    """Try a case; the fault is what it raises."""
    try:
        return Outcome(error=case.run(device))
    except WrongResultError as wrong:
        return Outcome(f"wrong result: {wrong}")
    except Exception as error:  # whatever it is, the kernel cannot be used
        text = str(error).strip().partition("\n")[0][:300]
        is_lasting = not isinstance(error, _OF_THE_MACHINE)
        return Outcome(f"{type(error).__name__}: {text}", is_lasting=is_lasting)


def _try_operator(
    name: str, options: str, dtype: torch.dtype, device: torch.device, is_pinned: bool = False
) -> float:
    """Compare a kernel with its reference on all blocks. `is_pinned`: features are in pinned host
    memory, for the kernel alone."""

    def in_float64(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float64
        return value.double() if value.is_floating_point() else value

    def pinned(tensor: Tensor) -> Tensor:
        is_moved = tensor.is_floating_point() and device.type != "cpu"
        return empty_pinned(tuple(tensor.shape), tensor.dtype).copy_(tensor) if is_moved else tensor

    errors = []
    for given in awkward_inputs(dtype):
        example: Any = OPERATORS[name].examples(given)[options]
        kernel = moved = example.map(lambda x: x.to(device) if isinstance(x, Tensor) else x)
        if is_pinned:
            features = moved.features.map(pinned)
            parts = device_addresses(features.held, device)
            kernel = replace(moved, features=replace(features, parts=parts))
        exact = example.map(in_float64)
        errors.append(compare(kernel.cuda, moved.reference, exact.reference))
    return max(errors)


def _try_sampler(
    device: torch.device,
    fan_outs: tuple[int, ...],
    index_type: str = "int32",
    is_repeating: bool = False,
    is_padded: bool = False,
) -> float:
    """Compare draws with the CPU's. Padded ones learn no sizes, as in a CUDA graph."""
    from gnntrain.sampling.gpu import GPUSampler  # imports Triton

    random = np.random.default_rng(0)
    degrees = random.integers(0, 20, 300)
    degrees[0], degrees[-30:] = 300, 0
    indptr = np.append(0, degrees.cumsum())
    indices = random.integers(0, 300, indptr[-1]).astype(index_type)
    graph = FusedCSC.cut([EDGE], {NODE: 300}, [int(indptr[-1])], indptr, indices)
    moved = [torch.from_numpy(array).to(device) for array in (indptr, indices)]
    on_device = replace(graph, indptr=moved[0], indices=moved[1])
    options: dict[str, Any] = {"replace": is_repeating, "edge_ids": True}
    cpu = CPUSampler(graph, {EDGE: fan_outs}, **options)
    gpu: Any = GPUSampler(on_device, {EDGE: fan_outs}, **options)
    nodes = torch.arange(0, 300, 14)
    seeds = Seeds({NODE: nodes}, NO_TARGETS)

    def tensors(sample: Sample) -> list[Tensor]:
        """The nodes; and of each hop `indptr`, `indices` and `edge_ids`."""
        blocks = [hop.edges[EDGE] for hop in sample.hops]
        return [sample.nodes[NODE], *(part for block in blocks for part in block.tensors.values())]

    for key in [SampleKey(1, 2, step) for step in (0, 0, 1)]:  # later draws find the first's traces
        if is_padded:
            drawn = gpu.sample_padded(nodes.to(device), gpu.hop_keys(key).to(device))
        else:
            drawn = gpu.sample(seeds, key)
        pairs = zip(tensors(drawn), tensors(cpu.sample(seeds, key)), strict=True)
        for i, (found, expected) in enumerate(pairs):
            if is_padded:  # by 0, and `indptr` by destinations without edges
                value = int(expected[-1]) if i % 3 == 1 else 0
                expected = F.pad(expected, (0, len(found) - len(expected)), value=value)
            if found.dtype != expected.dtype or not torch.equal(found.cpu(), expected):
                raise WrongResultError("another draw than the CPU's")
    return 0.0


def compare(
    kernel: Callable[[], Any], reference: Callable[[], Any], in_float64: Callable[[], Any]
) -> float:
    """The kernel's largest error against float64, relative to the largest number (at least 1). Each
    function computes a tensor or several, the latter two by the reference.

    Raises:
        WrongResultError: The error is above twice the reference's plus four times the type's
            resolution, which another order of additions explains; or two equal calls differ.
    """
    results = kernel(), kernel(), reference(), in_float64()
    columns = [[x] if isinstance(x, Tensor) else x for x in results]
    largest = 0.0
    for one, two, other, exact in zip(*columns, strict=True):
        forms = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in (one, other)]
        if forms[0] != forms[1]:
            raise WrongResultError(f"{forms[0]} instead of {forms[1]}")
        if not torch.equal(one.nan_to_num(), two.nan_to_num()):
            raise WrongResultError("two equal calls gave different numbers")
        if not one.numel():
            continue
        size = max(1.0, float(exact.double().nan_to_num(neginf=0).abs().max()))
        # −∞, the logarithm of an empty sum, is no further from itself than 0.
        error, usual = (
            float((x.double() - exact).masked_fill_(x == exact, 0).abs().max()) / size
            for x in (one.cpu(), other.cpu())
        )
        unit = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
        if not error <= 2 * usual + 4 * unit:  # NaN is no small error
            raise WrongResultError(f"error {error:.2g}, of the reference {usual:.2g}")
        largest = max(largest, error)
    return largest
