"""The cases of the self-check: kernels for GPUs, whose results are compared with references in
processes of their own. What kernels do to these does not reach the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.examples import awkward_inputs
from gnntrain.compute.operator import OPERATORS
from gnntrain.compute.selection import HOST_MEMORY, SAMPLER
from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.loading.pinned import PinningError, device_addresses, empty_pinned
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.sampling.block import Sample
from gnntrain.sampling.cpu import CPUSampler

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EXAMPLE_SECONDS = 60
"""An example that takes longer hangs; compiling its kernels takes a few seconds."""
_STARTED = "started\n"  # before it, imports may print
# No memory, no room on a disk, a compiler that fails: nothing that the kernel has done.
_TRANSIENT = MemoryError, torch.OutOfMemoryError, OSError, subprocess.SubprocessError, PinningError

Case = tuple[str, str]
"""A kernel and a precision: that of an operator, or one of `selection`'s further names."""

Example = Callable[[torch.device], float]
"""Tries a kernel on a device; gives its error, see `compare`."""


class WrongResultError(Exception):
    """A kernel's result is not that of its reference."""


class Outcome(NamedTuple):
    """What came of a case: its fault, if it has one; else the largest error; and whether another
    try would end alike, which is not so where the machine lacks memory, for example."""

    fault: str | None = None
    error: float = 0.0
    is_lasting: bool = True


def all_cases() -> dict[Case, dict[str, Example]]:
    """Every case with its examples by name: first the sampler, which each run needs."""
    cases: dict[Case, dict[str, Example]] = {
        (SAMPLER, "fp32"): {
            "fan-outs 4, 3": partial(_try_sampler, (4, 3)),
            "fan-outs 65, 2": partial(_try_sampler, (65, 2), index_type="int64"),
            "all in-neighbours": partial(_try_sampler, (-1, 2)),
            "with replacement": partial(_try_sampler, (3, 2), is_repeating=True),
            "padded": partial(_try_sampler, (3, 2), is_padded=True),
            "padded, fan-out 65": partial(_try_sampler, (65,), is_padded=True),
        }
    }
    for precision, dtype in PRECISIONS.items():
        pinned: dict[str, Example] = {}
        for name, operator in OPERATORS.items():
            if "cuda" in vars(operator) and dtype in operator.types:
                examples = cases[name, precision] = {}
                for options in operator.examples(next(awkward_inputs())):
                    examples[options] = partial(_try_operator, name, options, dtype)
                    if options == "rows in several matrices":
                        pinned[name] = partial(_try_operator, name, options, dtype, is_pinned=True)
        cases[HOST_MEMORY, precision] = pinned
    return cases


def try_cases(cases: Sequence[Case], device: str) -> dict[Case, Outcome]:
    """Try cases in order, in a process, see `child`. A process that ends within a case has found a
    fault, and another one goes on behind it."""
    known: dict[Case, Outcome] = {}
    while left := [case for case in cases if case not in known]:
        code = f"import sys; from {__name__} import child; child(*sys.argv[1:])"
        # No pipe for its errors: a compiler that outlives it would keep that open.
        with tempfile.TemporaryFile() as errors:
            done = subprocess.run(
                [sys.executable, "-P", "-c", code, device, json.dumps(left)],
                # The modules of this process, not those of the current directory.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C in a terminal does not reach it
                check=False,
            )
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        lines = done.stdout.partition(_STARTED.encode())[2].splitlines()
        reports = [json.loads(line) for line in lines]
        outcomes = [Outcome(*report) for report in reports if isinstance(report, list)]
        if (status := done.returncode) != 0 or not outcomes:
            ending = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            fault = ": ".join([f"ends its process: {ending}", *last])[:300]
            if not reports:
                fault = f"not checked: the process for it {fault}"
                return known | dict.fromkeys(left, Outcome(fault, is_lasting=False))
            if status == -signal.SIGALRM:
                fault = "hangs: no result in time"
            is_lasting = status != -signal.SIGKILL  # by the system or a person
            outcomes.append(Outcome(f"{fault} [{reports[-1]}]", is_lasting=is_lasting))
        known |= zip(left, outcomes, strict=False)
    return known


def child(device_name: str, cases: str) -> None:
    """Try cases, up to a fault: after an illegal access, for example, a process can compute
    nothing. A line of JSON names each example that begins, another one says how each case ended.

    A signal ends the process if an example hangs, a broken pipe if its parent has ended.
    """
    signal.alarm(EXAMPLE_SECONDS)
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    lines.write(_STARTED)
    os.dup2(2, 1)  # where a compiler may print
    all_examples, device = all_cases(), torch.device(device_name)
    torch.ones(1, device=device)
    for kernel, precision in json.loads(cases):
        outcome = Outcome()
        for example, error_on in all_examples[kernel, precision].items():
            lines.write(f"{json.dumps(example)}\n")
            signal.alarm(EXAMPLE_SECONDS)
            try:
                outcome = Outcome(error=max(outcome.error, error_on(device)))
            except Exception as error:  # whatever it is, the kernel cannot be used
                text = str(error).strip().partition("\n")[0][:300]
                fault = f"{type(error).__name__}: {text} [{example}]"
                outcome = Outcome(fault, is_lasting=not isinstance(error, _TRANSIENT))
                break
        lines.write(f"{json.dumps(outcome)}\n")
        if outcome.fault is not None:
            break
    os._exit(0)  # not by way of CUDA, which may be unable to clean up


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
    fan_outs: tuple[int, ...],
    device: torch.device,
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
                filler = expected[-1:] if i % 3 == 1 else expected.new_zeros(1)
                expected = torch.cat([expected, filler.expand(len(found) - len(expected))])
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
