"""Compile every kernel that the GPU's operators and sampler launch, for GPUs that are not here.

    python -m tests.compute.compiled_ahead

Prints what each takes, as JSON: a list of `absent_gpus.Compiled`. A process of its own: here Triton
compiles, elsewhere in the tests it interprets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gnntrain.compute import launching
from gnntrain.compute import triton_kernels as compute_kernels
from gnntrain.compute.examples import Inputs, awkward_inputs
from gnntrain.compute.operator import OPERATORS
from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.sampling import gpu, triton_kernels
from gnntrain.sampling.base import SampleKey
from tests.absent_gpus import AbsentGPUs, Compiled
from tests.sampling.graphs import random_csc, seeds_of

SAMPLER = ["register_seeds", "count_edges", "draw_by_row", "draw_by_edge", "draw_with_twins"]
SAMPLER += ["claim", "mark", "number", "forget"]


class CompilesInstead:
    """Stands where a kernel is launched, and compiles it for the arguments that come."""

    def __init__(self, kernel: Any, gpus: AbsentGPUs, found: set[Compiled]) -> None:
        self._kernel, self._gpus, self._found = kernel, gpus, found
        self.arg_names = kernel.arg_names

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._compile

    def _compile(self, *args: Any, **arguments: Any) -> None:
        arguments |= zip(self._kernel.arg_names, args, strict=False)
        self._found.update(self._gpus.compile_all(self._kernel, arguments))
        if arguments.get("K") and arguments["K"].ALIGN:
            # Buffer loads, which AMD's backend prefers, reach 2 GiB from `rows` on.
            code = self._gpus.compiled(self._kernel, arguments, "gfx942").asm["amdgcn"]
            assert "global_load" in code, "rows in other matrices are out of reach"


def compile_all() -> set[Compiled]:
    """All that was compiled, through the operators' examples and a sampler's calls."""
    gpus, found = AbsentGPUs(), set[Compiled]()
    for kernel in launched():
        launch = CompilesInstead(getattr(compute_kernels, kernel), gpus, found)
        setattr(compute_kernels, kernel, launch)
    for kernel in SAMPLER:
        launch = CompilesInstead(getattr(triton_kernels, kernel), gpus, found)
        setattr(triton_kernels, kernel, launch)
    for inputs in awkward_inputs(hub_edges=14):
        # All rows of the hub's block are long; its numbers are int64.
        launching.CHUNK_EDGES = 1 if inputs.name == "hubs" else 256
        types = {"hubs": (torch.float32,), "padded": (torch.bfloat16, torch.float16)}
        for dtype in types.get(inputs.name, ()):
            _call(replace(inputs, dtype=dtype))
    for index in (torch.int32, torch.int64):
        _sample(index)
    return found


def launched() -> list[str]:
    """The kernels that are launched, rather than called by another one."""
    kernels = vars(compute_kernels).items()
    return [name for name, value in kernels if "result" in getattr(value, "arg_names", ())]


def _call(inputs: Inputs) -> None:
    for operator in OPERATORS.values():
        if "cuda" in vars(operator) and inputs.dtype in operator.types:
            for example in operator.examples(inputs).values():
                example.cuda()


def _sample(index: torch.dtype) -> None:
    """Draw without the numbers that kernels would have written: a node and an edge each hop."""
    gpu._read = lambda sizes: [1] * len(sizes)
    gpu.resolve_draws = lambda values, *_: torch.zeros_like(values)
    indptr, indices = map(torch.from_numpy, random_csc(50, 300))
    tensors: Any = indptr, indices.to(index)
    edges = FusedCSC.cut([EDGE], {NODE: 50}, [300], *tensors)
    for fan_outs, has_twins in (((1, 10, 64, 65, -1), False), ((3,), True)):
        sampler = gpu.GPUSampler(edges, {EDGE: fan_outs}, replace=has_twins)
        sampler.sample(seeds_of([0, 1, 2]), SampleKey(1, 2, 3))


if __name__ == "__main__":
    print(json.dumps(sorted(compile_all())))
