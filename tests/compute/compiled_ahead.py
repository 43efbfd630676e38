"""Compile every kernel that the GPU's reductions launch, without a GPU; prints which and for what.

    python -m tests.compute.compiled_ahead

A process of its own: here Triton compiles, elsewhere in the tests it interprets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import triton
from gnntrain.compute.device import (
    DeviceReduction,
    DeviceTable,
    reduce_rows,
    reduce_table,
    transpose,
)
from gnntrain.compute.device_attention import InEdges, edge_softmax, pair_scores, pair_softmax
from gnntrain.models.fused_on_device import aggregated_linear
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gnntrain.compute import launching
from gnntrain.models.aggregate import Aggregation
from gnntrain.sampling.block import Block

ARCHITECTURES = [80, 90]
MODULES = ["triton_kernels", "triton_maximum", "triton_attention", "triton_pairs"]
_TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Compiled:
    """Stands where a kernel is launched, and compiles it for the arguments that come."""

    def __init__(self, name: str, kernel: Any, found: set[tuple[str, int]]) -> None:
        self._name, self._kernel, self._found = name, kernel, found

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._compile

    def _compile(self, **arguments: Any) -> None:
        constants = {parameter.name for parameter in self._kernel.params if parameter.is_constexpr}
        constants |= {name for name, value in arguments.items() if value is None}
        signature = {
            name: "constexpr" if name in constants else _type_of(arguments[name])
            for name in self._kernel.arg_names
        }
        values = {name: arguments[name] for name in constants}
        for architecture in ARCHITECTURES:
            source = ASTSource(self._kernel, signature=signature, constexprs=values)
            binary = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
            assert binary.asm["cubin"]
            self._found.add((self._name, architecture))


def _type_of(value: Tensor | int) -> str:
    return _TYPES[value.dtype] if isinstance(value, Tensor) else "i32"


def compile_all() -> set[tuple[str, int]]:
    """(kernel, architecture) of all that was compiled, through the calls that launch them."""
    found: set[tuple[str, int]] = set()
    for name in launched():
        place, kernel = name.split(".")
        module = import_module(f"gnntrain.compute.{place}")
        setattr(module, kernel, Compiled(name, getattr(module, kernel), found))
    for reduction in _reductions(torch.int32):
        _reduce(reduction, torch.bfloat16)
    _read_stored()
    _attend(torch.int32, torch.bfloat16)
    for dtype in (torch.float32, torch.float16):
        _fuse(dtype)
    launching._PIECE_EDGES = 1  # now all rows are long
    for reduction in _reductions(torch.int64):
        _reduce(reduction, torch.float32)
    _attend(torch.int64, torch.float32)
    return found


def launched() -> list[str]:
    """The kernels that are launched, rather than called by another one."""
    return [
        f"{module}.{name}"
        for module in MODULES
        for name, value in vars(import_module(f"gnntrain.compute.{module}")).items()
        if "out" in getattr(value, "arg_names", ())
    ]


def _edges(index: torch.dtype = torch.int32) -> tuple[Tensor, Tensor]:
    return torch.tensor([0, 1, 3], dtype=index), torch.tensor([0, 2, 1], dtype=index)


def _reductions(index: torch.dtype) -> list[DeviceReduction]:
    """As SAGE's mean and maximum, GCN's sum and GAT's heads."""
    edges = _edges(index)
    weight, heads = torch.ones(3).requires_grad_(), torch.ones(3, 2).requires_grad_()
    return [
        DeviceReduction(*edges, is_mean=True),
        DeviceReduction(*edges, is_max=True),
        DeviceReduction(
            *edges,
            edge_weight=weight,
            source_scale=torch.ones(3),
            row_scale=torch.ones(2),
            loop=torch.ones(2),
            skip_own=True,
        ),
        DeviceReduction(*edges, edge_weight=heads),
    ]


def _reduce(reduction: DeviceReduction, dtype: torch.dtype) -> None:
    rows = torch.ones(3, 602, dtype=dtype, requires_grad=True)
    indptr, indices = reduction.indptr, reduction.indices
    out = reduce_rows(rows, reduction, lambda: transpose(indptr, indices, 3))
    torch.autograd.backward(out.sum())


def _read_stored() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        table = DeviceTable(torch.ones(3, 602, dtype=dtype), torch.arange(3))
        reduce_table(table, _reductions(torch.int32)[0], torch.bfloat16)
        table.gather(0, 2, torch.empty(2, 602, dtype=torch.bfloat16))
    _read_spread(_reductions(torch.int32))


def _read_spread(reductions: list[DeviceReduction]) -> None:
    """From a cache, and from what is not in it."""
    cached, slots = torch.ones(1, 100), torch.tensor([-1, 0, -1], dtype=torch.int32)
    parts = torch.zeros(2, dtype=torch.int64)
    for table in (
        DeviceTable(cached, torch.arange(3), slots, parts, 2, (torch.ones(2, 100),) * 2),
        DeviceTable(cached, None, slots),
        DeviceTable(cached, torch.arange(3), None, parts, 2, (torch.ones(2, 100),) * 2),
    ):
        table.gather(0, 2, torch.empty(2, 100))
        for reduction in reductions:
            reduce_table(table, reduction, torch.float16)


def _attend(index: torch.dtype, dtype: torch.dtype) -> None:
    indptr, indices = _edges(index)
    edges = InEdges(indptr, indices, 0, None, lambda: transpose(indptr, indices, 3))
    score = torch.ones(3, 2, requires_grad=True)
    left, right = (torch.ones(rows, 8, dtype=dtype, requires_grad=True) for rows in (3, 2))
    att = torch.ones(2, 4, requires_grad=True)
    for loop_alpha in (
        edge_softmax(score, torch.ones(2, 2), edges)[1],
        pair_softmax(score, torch.ones(2, 2), torch.ones(2, 2), 0.2, edges)[1],
        pair_scores(left, right, att, 0.2, edges),
    ):
        torch.autograd.backward(loop_alpha.sum())


def _fuse(dtype: torch.dtype) -> None:
    block = Block(*_edges(), 3)
    rows = torch.ones(3, 100, dtype=dtype, requires_grad=True)
    weight = torch.ones(8, 100, dtype=dtype)
    given = Aggregation(block, "mean"), weight, weight, torch.ones(8, dtype=dtype), None
    torch.autograd.backward(aggregated_linear(rows, *given).sum())
    aggregated_linear(DeviceTable(rows.detach().half(), torch.arange(3)), *given)


if __name__ == "__main__":
    print(json.dumps(sorted(compile_all())))
