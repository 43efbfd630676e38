"""Rows that lie in several places against a plain gather; on every registration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute.features import LazyFeatures, addresses_of
from gnntrain.compute.operator import Sum
from gnntrain.models.aggregate import aggregate
from tests.compute.devices import NEEDS_GPU
from tests.compute.registrations import each_registration
from tests.compute.test_ops import assert_near
from tests.examples import examples
from tests.models.blocks import full_block, rough_graph
from tests.models.slow_aggregate import slow_aggregate

pytest.importorskip("triton", reason="triton is not installed")

NUM_NODES = 40
STORED = [torch.float32, torch.float16, torch.bfloat16]


@dataclass(frozen=True)
class Spread:
    """A matrix, and how it is spread: the nodes that are cached, and the rows of a part."""

    matrix: Tensor
    cached: Tensor
    part_rows: int
    nodes: Tensor | None = None

    def table(self, device: str, place: Callable[[Tensor], Tensor] | None = None) -> LazyFeatures:
        """On the device; the parts wherever `place` puts them."""
        place = place or (lambda part: part.to(device))
        parts = [place(part.clone()) for part in torch.split(self.matrix, self.part_rows)]
        copies = [part.to(device) for part in torch.split(self.matrix[self.cached], self.part_rows)]
        places = torch.arange(len(self.matrix), dtype=torch.int32)
        first = len(parts) * self.part_rows
        places[self.cached] = first + torch.arange(len(self.cached), dtype=torch.int32)
        nodes = places if self.nodes is None else places[self.nodes]
        is_sharded = self.nodes is None and not len(self.cached)
        return LazyFeatures(
            copies[0],
            nodes=None if is_sharded else nodes.to(device),
            parts=addresses_of([*parts, *copies], device),
            part_rows=self.part_rows,
            held=(*parts, *copies),
        )

    @property
    def expected(self) -> Tensor:
        return self.matrix if self.nodes is None else self.matrix[self.nodes]


@st.composite
def spreads(draw: st.DrawFn, width: int | None = None) -> Spread:
    """Any nodes cached, in any order: none, some or all; one part or several, the last short."""
    dtype = draw(st.sampled_from(STORED))
    width = width or draw(st.sampled_from([1, 3, 8, 47]))
    torch.manual_seed(draw(st.integers(0, 9)))
    order = torch.randperm(NUM_NODES)[: draw(st.sampled_from([0, 1, 13, NUM_NODES]))]
    named = draw(st.booleans())
    return Spread(
        torch.randn(NUM_NODES, width).to(dtype),
        order,
        draw(st.sampled_from([1, 7, 20, NUM_NODES, 50])),
        torch.randint(0, NUM_NODES, (NUM_NODES,)) if named else None,
    )


def gathered(table: LazyFeatures, start: int, stop: int) -> Tensor:
    return table.read(start, stop, table.rows.dtype).cpu()


@each_registration
@examples(40)
@given(
    spread=spreads(),
    start=st.integers(0, NUM_NODES - 1),
    made=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_rows_are_gathered_from_wherever_they_lie_and_converted(
    spread: Spread, start: int, made: torch.dtype, device: str
) -> None:
    table = spread.table(device)
    assert len(table) == NUM_NODES
    got = table.read(start, NUM_NODES, made).cpu()
    torch.testing.assert_close(got, spread.expected[start:].to(made))
    columns = gathered(table.columns(slice(1, None)), start, NUM_NODES)
    assert torch.equal(columns, spread.expected[start:, 1:])


@each_registration
@examples(30)
@given(spread=spreads(), is_sum=st.booleans())
def test_rows_are_reduced_wherever_they_lie(spread: Spread, is_sum: bool, device: str) -> None:
    block, total = full_block(rough_graph(), 4, 30), Sum() if is_sum else None
    got = aggregate(spread.table(device), block.to(device), total)
    assert_near(got, slow_aggregate(spread.expected.double(), block, total))


@each_registration
@pytest.mark.parametrize("shift", [0, 1, 3, 4])
def test_parts_may_begin_at_any_number(shift: int, device: str) -> None:
    spread = Spread(torch.randn(NUM_NODES, 8).half(), torch.arange(3), NUM_NODES)
    memory = torch.empty(8 * NUM_NODES + shift, dtype=torch.float16, device=device)
    part = memory[shift:].view(NUM_NODES, 8)
    table = spread.table(device, part.copy_)
    assert table.held[0].data_ptr() == memory.data_ptr() + 2 * shift
    assert torch.equal(gathered(table, 0, NUM_NODES), spread.matrix)


@each_registration
def test_only_what_a_batch_names_is_read(device: str) -> None:
    """Nodes that are not cached nor named may lie anywhere, even nowhere."""
    spread = Spread(torch.randn(NUM_NODES, 5), torch.arange(10), 10, torch.randint(10, (25,)))
    table = spread.table(device)
    assert table.parts is not None
    table.parts[:4] = 0
    assert torch.equal(gathered(table, 0, 25), spread.expected)
    block = full_block(rough_graph(25), 0, 5).to(device)
    assert aggregate(table, block, Sum()).isfinite().all()


@NEEDS_GPU
@pytest.mark.parametrize("num_cached", [0, 300, 3000])
def test_what_is_not_cached_is_read_over_the_bus(num_cached: int) -> None:
    torch.manual_seed(0)
    cached = torch.randperm(3000)[:num_cached]
    spread = Spread(torch.randn(3000, 100).bfloat16(), cached, 700, torch.randint(3000, (999,)))
    table = spread.table("cuda", Tensor.pin_memory)
    assert torch.equal(gathered(table, 0, 999), spread.expected)


def test_rows_that_a_cpu_reads_ask_the_cuda_driver_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would make a context on the GPU for each rank that trains on the CPU."""

    def refuse(_: torch.Tensor) -> bool:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", refuse)
    rows = torch.randn(5, 3)
    for features in (LazyFeatures(rows), LazyFeatures(rows).select(torch.tensor([4, 0]))):
        assert features.device == torch.device("cpu")
        assert features.whole().shape == (len(features), 3)
