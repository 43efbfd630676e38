"""The cases of the self-check: kernels for GPUs, whose results are compared with references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import cuda, reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import HOST_MEMORY, SAMPLER
from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.loading.pinned import device_addresses, empty_pinned
from gnntrain.sampling.base import NO_TARGETS, SampleKey, Seeds
from gnntrain.sampling.block import Sample
from gnntrain.sampling.cpu import CPUSampler
from gnntrain.selfcheck.arguments import FLOAT32_ALONE, FORMS, Form, Inputs
from gnntrain.selfcheck.blocks import awkward_blocks

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
READERS = {
    "gather": "selected rows",
    "aggregate": "mean, own rows",
    "aggregate_max": "selected rows",
}
"""The operators that read features, each with arguments of a first layer."""
Function = Callable[..., Any]


class WrongResultError(Exception):
    """A kernel's result is not that of its reference."""


class Case(NamedTuple):
    """A kernel to try.

    Attributes:
        name: Distinct among all cases: the kernel, a colon, and what it is tried with.
        kernel: The operator's name, or one of `selection`'s further names.
        precision: fp32, bf16 or fp16; None: the case has no floating-point numbers.
        run: Try it on a device; the error, see `compare`.
    """

    name: str
    kernel: str
    precision: str | None
    run: Callable[[torch.device], float]


def all_cases() -> list[Case]:
    """Every case: what most models need first."""
    draws: dict[str, Any] = {
        "fan-outs 4, 3": partial(_try_sampler, (4, 3)),
        "fan-outs 65, 2": partial(_try_sampler, (65, 2), index_type="int64"),
        "all in-neighbours": partial(_try_sampler, (-1, 2)),
        "with replacement": partial(_try_sampler, (3, 2), is_repeating=True),
        "padded": partial(_try_sampler, (3, 2), is_padded=True),
        "padded, fan-out 65": partial(_try_sampler, (65,), is_padded=True),
    }
    cases = [case for precision in PRECISIONS for case in _operator_cases(precision)]
    return cases + [Case(f"{SAMPLER}: {name}", SAMPLER, None, run) for name, run in draws.items()]


def _operator_cases(precision: str) -> list[Case]:
    """The store's rows may have another type than activations, and may lie in host memory."""
    dtype, cases, of_host_memory = PRECISIONS[precision], list[Case](), list[Case]()
    for name, forms in FORMS.items():
        if precision != "fp32" and name in FLOAT32_ALONE:
            continue
        runs = {key: partial(_try_operator, name, form, dtype) for key, form in forms.items()}
        if name in READERS:
            read = partial(_try_operator, name, forms[READERS[name]])
            runs[READERS[name]] = partial(read, dtype, result=dtype)
            if precision != "fp32":
                runs["float32 rows"] = partial(read, torch.float32, result=dtype)
                runs["float32 results"] = partial(read, dtype, result=torch.float32)
            run = partial(read, dtype, result=dtype, wrap=_on_spread_rows)
            case = Case(f"{HOST_MEMORY}: {name}, {precision}", HOST_MEMORY, precision, run)
            of_host_memory.append(case)
        cases += [Case(f"{name}: {key}, {precision}", name, precision, runs[key]) for key in runs]
    return cases + of_host_memory


def _try_operator(
    name: str,
    form: Form,
    rows: torch.dtype,
    device: torch.device,
    result: torch.dtype | None = None,
    wrap: Function | None = None,
) -> float:
    """Compare a kernel, or `wrap` of it, with its reference on all blocks, for features of the type
    `rows`; with `result`, the type of the results is not the form's."""
    kernel, error = getattr(cuda, name), 0.0
    kernel = kernel if wrap is None else partial(wrap, kernel)
    for block_name, block in awkward_blocks():
        arguments = form(Inputs(block, rows))
        if result is not None:
            arguments = _mapped(arguments, lambda x: result if isinstance(x, torch.dtype) else x)
        try:
            error = max(error, compare(kernel, getattr(reference, name), arguments, device))
        except WrongResultError as wrong:
            raise WrongResultError(f"{wrong} ({block_name})") from wrong
    return error


def _on_spread_rows(kernel: Function, features: LazyFeatures, *others: Any) -> Any:
    """The result for rows in host memory that the GPU reads: every third as if cached, the others
    in two matrices."""

    def pinned(part: Tensor) -> Tensor:
        empty = torch.empty if part.device.type == "cpu" else empty_pinned
        return empty(tuple(part.shape), dtype=part.dtype).copy_(part)

    rows = features.rows
    slots = torch.full((len(rows),), -1, dtype=torch.int32, device=rows.device)
    slots[::3] = torch.arange(len(slots[::3]), dtype=torch.int32, device=rows.device)
    held = tuple(map(pinned, torch.split(rows, (len(rows) + 1) // 2)))
    parts = device_addresses(held, rows.device)
    cached, nodes = pinned(rows[::3]), features.nodes
    return kernel(LazyFeatures(cached, nodes, slots, parts, len(held[0]), held), *others)


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

    def by_gpu(key: SampleKey) -> list[Tensor]:
        if is_padded:
            return _tensors(gpu.sample_padded(nodes.to(device), gpu.hop_keys(key).to(device)))
        return _tensors(gpu.sample(seeds, key))

    def by_cpu(key: SampleKey) -> list[Tensor]:
        drawn = _tensors(cpu.sample(seeds, key))
        if is_padded:  # by 0, and `indptr` by destinations without edges
            for number, padded in enumerate(by_gpu(key)):
                value, more = drawn[number], len(padded) - len(drawn[number])
                fill = int(value[-1]) if number % 3 == 1 else 0
                drawn[number] = F.pad(value, (0, more), value=fill)
        return drawn

    # The second draw finds the first one's traces.
    return max(compare(by_gpu, by_cpu, (SampleKey(1, 2, step),), device) for step in range(2))


def _tensors(sample: Sample) -> list[Tensor]:
    """The nodes; and of each hop `indptr`, `indices` and `edge_ids`."""
    blocks = [hop.edges[EDGE] for hop in sample.hops]
    return [sample.nodes[NODE], *(tensor for block in blocks for tensor in block.tensors.values())]


def compare(
    kernel: Function, reference: Function, arguments: tuple[Any, ...], device: torch.device
) -> float:
    """The kernel's largest error against float64, relative to the largest number (at least 1).

    Args:
        kernel, reference: Take the same arguments, and give a tensor or several.
        arguments: On the CPU.
        device: Where both are to compute.

    Raises:
        WrongResultError: The error is above twice the reference's plus twice the type's resolution;
            or two equal calls differ in a bit.
    """
    given = _mapped(arguments, lambda x: x.to(device) if isinstance(x, Tensor) else x)
    results = [kernel(*given), kernel(*given), reference(*given)]
    results.append(reference(*_mapped(arguments, _in_float64)))
    columns = [[x] if isinstance(x, Tensor) else x for x in results]
    largest = 0.0
    for one, two, other, right in zip(*columns, strict=True):
        forms = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in (one, other)]
        if forms[0] != forms[1]:
            raise WrongResultError(f"{forms[0]} instead of {forms[1]}")
        if not torch.equal(one.nan_to_num(), two.nan_to_num()):
            raise WrongResultError("two equal calls gave different numbers")
        if not one.numel():
            continue
        size = max(1.0, float(right.double().nan_to_num(neginf=0).abs().max()))
        # −∞, the logarithm of an empty sum, is no further from itself than 0.
        error, usual = (
            float((x.double() - right).masked_fill_(x == right, 0).abs().max()) / size
            for x in (one.cpu(), other.cpu())
        )
        unit = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
        if not error <= 2 * usual + 2 * unit:  # NaN is no small error
            raise WrongResultError(f"error {error:.2g}, of the reference {usual:.2g}")
        largest = max(largest, error)
    return largest


def _in_float64(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    return torch.float64 if isinstance(value, torch.dtype) else value


def _mapped(value: Any, function: Function) -> Any:
    """The same arguments, after the function for each tensor, type and number in them."""
    if isinstance(value, LazyFeatures):
        return replace(value, rows=function(value.rows), nodes=function(value.nodes))
    if isinstance(value, tuple):
        items = [_mapped(item, function) for item in value]
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    return function(value)
