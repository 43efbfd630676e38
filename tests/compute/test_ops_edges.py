"""Hubs and padding: what the GPU's kernels do where rows are long, and where there are too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from gnntrain.compute import launching, ops, reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import Chunks
from gnntrain.models.aggregate import Aggregation, Reduce, aggregate
from gnntrain.models.attention import edge_softmax, pair_score, sum_softmax
from gnntrain.sampling.block import Block
from tests.compute.registrations import each_registration, on_gpu_kernels, registered
from tests.compute.test_ops import assert_near, check, weighted_sum
from tests.examples import examples
from tests.models.blocks import full_block, graph_of
from tests.models.padding import padded
from tests.models.slow_aggregate import blocks

pytest.importorskip("triton", reason="triton is not installed")


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    """Small chunks, so that small graphs have rows of many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "_CHUNK_EDGES", size)
        yield


def test_only_rows_that_may_be_long_are_cut() -> None:
    assert Chunks.of(1_000_000, 25).size == Chunks.of(500).size == 0
    assert Chunks.of(1_000_000) == Chunks.of(1_000_000, 2000) == Chunks(256, 3906, 1_000_000)


HUB = 19


def hub_block(offset: int = 0, index: torch.dtype = torch.int32) -> Block:
    """A hub both ways, self loops, duplicate edges and a node without any."""
    edges = [(i % 6, 2) for i in range(HUB)] + [(4, i % 5) for i in range(HUB)]
    return full_block(graph_of(7, [*edges, (0, 0), (3, 1), (3, 1), (5, 5)]), offset, 6, index)


BLOCKS = [hub_block(), hub_block(1, torch.int64)]


def given_by(reduce: Reduce, block: Block) -> Aggregation:
    """With every factor that there may be."""
    if reduce == "max":
        return Aggregation(block, reduce)
    torch.manual_seed(1)
    sizes = block.num_edges, block.num_src, block.num_dst, block.num_dst
    names = ("weight", "source_scale", "scale", "loop")
    factors: dict[str, Any] = {
        name: torch.rand(size, dtype=torch.float64) for name, size in zip(names, sizes, strict=True)
    }
    return Aggregation(block, reduce, **factors, skip_loops=True)


@on_gpu_kernels
@pytest.mark.parametrize("block", BLOCKS, ids=["int32", "int64"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_an_aggregate_over_chunks_is_a_loop_over_edges(
    reduce: Reduce, block: Block, device: str
) -> None:
    with chunks_of(4):
        check(given_by(reduce, block), 3, torch.float64, device)


@on_gpu_kernels
@pytest.mark.parametrize("block", BLOCKS, ids=["int32", "int64"])
def test_maxima_over_chunks_of_stored_rows_are_those_over_whole_rows(
    block: Block, device: str
) -> None:
    """Which take no gradient, and so count no maxima."""
    rows = torch.randn(block.num_src, 3)
    features, whole = LazyFeatures(rows.to(device)), Aggregation(block.to(device), "max")
    expected = aggregate(features, whole)
    with chunks_of(4):
        assert torch.equal(aggregate(features, whole), expected)


@on_gpu_kernels
def test_chunks_of_a_block_without_destinations_read_nothing(device: str) -> None:
    """As padding may leave one."""
    indptr, indices = torch.zeros(1, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    block, nothing = Block(indptr, indices, 1).to(device), torch.empty(0, 4, device=device)
    with chunks_of(2):
        score = pair_score(block, nothing.new_ones(1, 4), nothing, nothing.new_ones(2, 2), 0.2)
        alpha, _ = edge_softmax(block, score, nothing[:, :2])
        out = aggregate(nothing.new_ones(1, 4), Aggregation(block, weight=alpha))
    assert not alpha.any()
    assert out.shape == (0, 4)


def gradients(
    call: Callable[..., Any], block: Block, inputs: list[Tensor], device: str, dtype: torch.dtype
) -> list[Tensor]:
    """What a call gives, and the gradients of its inputs; the same for equal calls."""
    moved = [part.to(device, dtype).requires_grad_() for part in inputs]
    out = call(block.to(device), *moved)
    outs = list(out) if isinstance(out, tuple) else [out]
    if not any(part.requires_grad for part in outs):  # a loop over no edges
        return [*outs, *map(torch.zeros_like, moved)]
    torch.manual_seed(7)
    pulls = [torch.randn(part.shape, dtype=torch.float64).to(part) for part in outs]
    options = {"allow_unused": True, "materialize_grads": True}
    return [*(part.detach() for part in outs), *torch.autograd.grad(outs, moved, pulls, **options)]


def attention_calls(block: Block, heads: int, width: int) -> list[tuple[Any, list[Tensor]]]:
    """(call, inputs)."""
    torch.manual_seed(0)
    edges, dst = block.num_edges, block.num_dst
    source, target, loop = (torch.randn(rows, heads) for rows in (block.num_src, dst, dst))
    left, right = (torch.randn(rows, heads * width) for rows in (block.num_src, dst))
    score, att = torch.randn(edges, heads) * 3, torch.randn(heads, width)
    return [
        (edge_softmax, [score, loop]),
        (edge_softmax, [score]),
        (_with_slope(sum_softmax), [source, target, loop]),
        (_with_slope(pair_score), [left, right, att]),
        (lambda own, x, weight: weighted_sum(own, x, weight, None), [left, score]),
    ]


def _with_slope(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: call(*inputs, 0.2)


@on_gpu_kernels
@pytest.mark.parametrize(
    ("block", "shape", "size"),
    [(BLOCKS[0], (2, 5), 512), (BLOCKS[1], (2, 5), 4), (BLOCKS[0], (1, 1), 4)],
    ids=["whole", "chunks", "one head"],
)
def test_attention_is_the_references_with_and_without_chunks(
    block: Block, shape: tuple[int, int], size: int, device: str
) -> None:
    for call, inputs in attention_calls(block, *shape):
        with chunks_of(size):
            got = gradients(call, block, inputs, device, torch.float64)
        with registered(reference, "CPU"):
            wanted = gradients(call, replace(block, derived={}), inputs, "cpu", torch.float64)
        for part, expected in zip(got, wanted, strict=True):
            assert_near(part, expected)


@each_registration
@pytest.mark.parametrize("size", [512, 4])
def test_attention_over_a_padded_block_is_that_over_the_block(size: int, device: str) -> None:
    block, shape = hub_block(), (2, 3)
    longer = padded(block)
    for mine, inputs in attention_calls(block, *shape):
        with chunks_of(size):
            expected = gradients(mine, block, inputs, device, torch.float64)
            more = [_longer(part, block, longer) for part in inputs]
            got = gradients(_cut(mine, block), longer, more, device, torch.float64)
        for part, wanted in zip(got, expected, strict=True):
            assert_near(part[: len(wanted)], wanted.cpu())
            assert not part[len(wanted) :].any()


def _longer(part: Tensor, block: Block, longer: Block) -> Tensor:
    """Numbers for nodes that are too many; for edges anything, even what is not a number."""
    sizes = {block.num_src: longer.num_src, block.num_dst: longer.num_dst}
    if len(part) == block.num_edges:
        more, fill = longer.num_edges - len(part), torch.nan
    else:
        more, fill = sizes.get(len(part), len(part)) - len(part), 3.0
    return torch.cat([part, part.new_full((more, *part.shape[1:]), fill)])


def _cut(call: Callable[..., Any], block: Block) -> Callable[..., Any]:
    """What belongs to the block: the rest is nobody's."""

    def cut(longer: Block, *inputs: Tensor) -> Any:
        out = call(longer, *inputs)
        if isinstance(out, tuple):
            return out[0][: block.num_edges], out[1][: block.num_dst]
        return out[: block.num_edges if len(out) == longer.num_edges else block.num_dst]

    return cut


@each_registration
@pytest.mark.parametrize("size", [512, 4])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_an_aggregate_over_a_padded_block_is_that_over_the_block(
    reduce: Reduce, size: int, device: str
) -> None:
    given = given_by(reduce, hub_block())
    torch.manual_seed(0)
    block, longer = given.block, padded(given.block)
    x = torch.randn(block.num_src, 3, dtype=torch.float64)
    more = torch.cat([x, torch.full((4, 3), torch.nan, dtype=torch.float64)])
    names = {"weight": 5, "source_scale": 4, "scale": 3, "loop": 3}
    factors: dict[str, Any] = {
        name: torch.cat([value, value.new_ones(by)]).to(device)
        for name, by in names.items()
        if (value := getattr(given, name)) is not None
    }
    same = {name: value[: -names[name]] for name, value in factors.items()}
    with chunks_of(size):
        expected = gradients(
            lambda own, rows: aggregate(rows, replace(given, block=own, **same)),
            block, [x], device, torch.float64,
        )  # fmt: skip
        got = gradients(
            lambda own, rows: aggregate(rows, replace(given, block=own, **factors))[
                : block.num_dst
            ],
            longer, [more], device, torch.float64,
        )  # fmt: skip
    assert_near(got[0], expected[0].cpu())
    assert_near(got[1][: block.num_src], expected[1].cpu())


@each_registration
@examples(20)
@given(block=blocks(max_offset=0))
def test_padding_is_nobodys_out_edge(block: Block, device: str) -> None:
    block = block.to(device)
    longer = padded(block)
    expected = ops.transpose(block.indptr, block.indices, block.num_src)
    got = ops.transpose(longer.indptr, longer.indices, longer.num_src)
    assert got[0][: block.num_src + 1].tolist() == expected[0].tolist()
    assert set(got[0][block.num_src :].tolist()) == {block.num_edges}
    for part, wanted in zip(got[1:], expected[1:], strict=True):
        assert part[: block.num_edges].tolist() == wanted.tolist()
