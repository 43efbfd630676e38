"""Compile every kernel that the GPU's operators and sampler launch, for GPUs that are not here.

    python -m tests.compute.compiled_ahead

Prints what each takes, as JSON: a list of `absent_gpus.Compiled`. A process of its own: here Triton
compiles, elsewhere in the tests it interprets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from gnntrain.compute import cuda, launching
from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.models.aggregate import Aggregation, aggregate
from gnntrain.models.attention import dot_score, edge_softmax, pair_score, sum_softmax
from gnntrain.models.linear import LinearSum, LinearTerm, linear_sums
from gnntrain.sampling import gpu, triton_kernels
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Block
from tests.absent_gpus import AbsentGPUs, Compiled
from tests.compute.registrations import registered
from tests.sampling.graphs import random_csc, seeds_of

MODULES = ["triton_kernels", "triton_maximum", "triton_attention", "triton_pairs"]
SAMPLER = ["register_seeds", "count_edges", "draw_by_row", "draw_by_edge", "draw_with_twins"]
SAMPLER += ["claim", "mark", "number", "forget"]


class CompilesInstead:
    """Stands where a kernel is launched, and compiles it for the arguments that come."""

    def __init__(self, kernel: Any, gpus: AbsentGPUs, found: set[Compiled]) -> None:
        self._kernel, self._gpus, self._found = kernel, gpus, found

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._compile

    def _compile(self, *args: Any, **arguments: Any) -> None:
        arguments |= zip(self._kernel.arg_names, args, strict=False)
        self._found.update(self._gpus.compile_all(self._kernel, arguments))
        if arguments.get("parts") is not None:
            # Buffer loads, which AMD's backend prefers, reach 2 GiB from `rows` on.
            code = self._gpus.compiled(self._kernel, arguments, "gfx942").asm["amdgcn"]
            assert "global_load" in code, "rows in other matrices are out of reach"


def compile_all() -> set[Compiled]:
    """All that was compiled, through the calls that launch them."""
    gpus, found = AbsentGPUs(), set[Compiled]()
    for name in launched():
        place, kernel = name.split(".")
        module = import_module(f"gnntrain.compute.{place}")
        setattr(module, kernel, CompilesInstead(getattr(module, kernel), gpus, found))
    for kernel in SAMPLER:
        launch = CompilesInstead(getattr(triton_kernels, kernel), gpus, found)
        setattr(triton_kernels, kernel, launch)
    for aggregation in _aggregations(torch.int32):
        _aggregate(aggregation, torch.bfloat16)
    _read_stored()
    _attend(torch.int32, torch.bfloat16)
    for dtype in (torch.float32, torch.float16):
        _fuse(dtype)
    launching._CHUNK_EDGES = 1  # now all rows are long
    for aggregation in _aggregations(torch.int64):
        _aggregate(aggregation, torch.float32)
    _attend(torch.int64, torch.float32)
    for index in (torch.int32, torch.int64):
        _sample(index)
    return found


def launched() -> list[str]:
    """The kernels that are launched, rather than called by another one."""
    return [
        f"{module}.{name}"
        for module in MODULES
        for name, value in vars(import_module(f"gnntrain.compute.{module}")).items()
        if "out" in getattr(value, "arg_names", ())
    ]


def _block(index: torch.dtype = torch.int32) -> Block:
    indptr, indices = torch.tensor([0, 1, 3], dtype=index), torch.tensor([0, 2, 1], dtype=index)
    return Block(indptr, indices, 3)


def _aggregations(index: torch.dtype) -> list[Aggregation]:
    """As SAGE's mean and maximum, GCN's sum and GAT's heads."""
    block, ones = _block(index), torch.ones(2)
    weight, heads = torch.ones(3).requires_grad_(), torch.ones(3, 2).requires_grad_()
    scales: dict[str, Any] = {"source_scale": torch.ones(3), "scale": ones, "loop": ones}
    return [
        Aggregation(block, "mean"),
        Aggregation(block, "max"),
        Aggregation(block, weight=weight, **scales, skip_loops=True),
        Aggregation(block, weight=heads),
    ]


def _aggregate(aggregation: Aggregation, dtype: torch.dtype) -> None:
    rows = torch.ones(3, 602, dtype=dtype, requires_grad=True)
    torch.autograd.backward(aggregate(rows, aggregation).sum())


def _read_stored() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        features = LazyFeatures(torch.ones(3, 602, dtype=dtype), torch.arange(3))
        aggregate(features, _aggregations(torch.int32)[0])
        features.read(0, 2, torch.bfloat16)
    # From a cache, and from what is not in it.
    cached, slots = torch.ones(1, 100), torch.tensor([-1, 0, -1], dtype=torch.int32)
    parts = torch.zeros(2, dtype=torch.int64)
    for features in (
        LazyFeatures(cached, torch.arange(3), slots, parts, 2, (torch.ones(2, 100),) * 2),
        LazyFeatures(cached, None, slots),
        LazyFeatures(cached, torch.arange(3), None, parts, 2, (torch.ones(2, 100),) * 2),
    ):
        features.read(0, 2)
        for aggregation in _aggregations(torch.int32):
            aggregate(features, aggregation)


def _attend(index: torch.dtype, dtype: torch.dtype) -> None:
    block = _block(index)
    score = torch.ones(3, 2, requires_grad=True)
    left, right = (torch.ones(rows, 8, dtype=dtype, requires_grad=True) for rows in (3, 2))
    att = torch.ones(2, 4, requires_grad=True)
    for out in (
        edge_softmax(block, score, torch.ones(2, 2))[1],
        edge_softmax(block, score)[1],
        dot_score(block, left[:, 4:], right[:, 4:], 2),
        sum_softmax(block, score, torch.ones(2, 2), torch.ones(2, 2), 0.2)[1],
        pair_score(block, left, right, att, 0.2),
    ):
        torch.autograd.backward(out.sum())


def _fuse(dtype: torch.dtype) -> None:
    rows = torch.ones(3, 100, dtype=dtype, requires_grad=True)
    weight = torch.ones(8, 100, dtype=dtype)
    block = _block()
    term = LinearTerm(0, Aggregation(block, "mean"), weight)
    layer = LinearSum([term], 0, block.num_dst, weight, torch.ones(8, dtype=dtype))
    torch.autograd.backward(linear_sums([rows], [layer])[0].sum())
    linear_sums([LazyFeatures(rows.detach().half(), torch.arange(3))], [layer])


def _sample(index: torch.dtype) -> None:
    """Draw without the numbers that kernels would have written: a node and an edge each hop."""
    gpu._read = lambda sizes: [1] * len(sizes)
    gpu.resolve_draws = lambda values, *_: torch.zeros_like(values)
    indptr, indices = map(torch.from_numpy, random_csc(50, 300))
    tensors: Any = indptr, indices.to(index)
    edges = FusedCSC.cut([EDGE], {NODE: 50}, [300], *tensors)
    for fan_outs, replace in (((1, 10, 64, 65, -1), False), ((3,), True)):
        sampler = gpu.GPUSampler(edges, {EDGE: fan_outs}, replace=replace)
        sampler.sample(seeds_of([0, 1, 2]), SampleKey(1, 2, 3))


if __name__ == "__main__":
    with registered(cuda, "CPU"):
        print(json.dumps(sorted(compile_all())))
