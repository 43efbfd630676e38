"""Rows that several machines hold are those of the whole matrix, and each is asked for once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import NODE, Graph, NodeType
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import Exchange, open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.owners import NodeOwners
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.sharded import (
    ROWS,
    RowCache,
    ShardedFeatures,
    answers_of,
    fetch_cache,
)
from gnntrain.sampling.block import BlockNeeds
from tests.compute.devices import on_each_device
from tests.examples import examples
from tests.loading.graphs import (
    CPU,
    assert_same,
    builder,
    cpu_loader,
    graph_of,
    plan_of,
    weighted,
)
from tests.simulated_device import present, watched

Arrays = Sequence[npt.NDArray[Any]]


class Calls:
    """Owners in this process, which note what they were asked for.

    Attributes:
        asked: The rows of each call, by owner.
    """

    def __init__(self, owner: int | None, parts: Sequence[Sequence[npt.NDArray[Any]]]) -> None:
        self.owner = owner
        self.asked: list[dict[int, npt.NDArray[Any]]] = []
        self._answers = [answers_of(own) for own in parts]

    def call(self, name: str, arguments: Mapping[int, Arrays]) -> dict[int, list[npt.NDArray[Any]]]:
        assert name == ROWS
        self.asked.append({owner: rows for owner, (rows,) in arguments.items()})
        return {
            owner: [answer.copy() for answer in self._answers[owner](list(rows))]
            for owner, rows in arguments.items()
        }


def as_stored(rows: torch.Tensor) -> npt.NDArray[Any]:
    """Rows in a store's form; see `gnntrain.data.graph.Nodes`."""
    bits = rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows
    return bits.numpy()


class Sharded:
    """A matrix in ranges; see `ShardedFeatures`.

    Args:
        matrix: The oracle.
        starts: Of each owner's range; and the end.
        owner: The range of this machine.
        cuts: Where the own range is cut into matrices.
        cached: Nodes of other machines.
        device: Which reads the rows.
    """

    def __init__(
        self,
        matrix: torch.Tensor,
        starts: Sequence[int],
        owner: int | None,
        cuts: Sequence[int] = (),
        cached: Sequence[int] = (),
        device: torch.device = CPU,
    ) -> None:
        owners = NodeOwners(np.array(starts))
        parts = [[matrix[a:b]] for a, b in pairwise(starts)]
        if owner is not None:
            ends = [starts[owner], *sorted(cuts), starts[owner + 1]]
            parts[owner] = [matrix[a:b].clone() for a, b in pairwise(ends)]
        self.calls = Calls(owner, [[as_stored(part) for part in own] for own in parts])
        nodes = np.array(cached, np.int64)
        cache = fetch_cache(nodes, matrix, owners, self.calls, DistributedContext())
        self.calls.asked.clear()
        own = [] if owner is None else parts[owner]
        self.source = ShardedFeatures(own, owners, self.calls, cache, device=device)


@st.composite
def shardings(draw: st.DrawFn) -> tuple[torch.Tensor, Sharded, set[int], range]:
    """Ranges of unequal length, some of them empty; own rows in several matrices; any cache."""
    num_nodes = draw(st.integers(1, 40))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    torch.manual_seed(draw(st.integers(0, 9)))
    matrix = torch.randn(num_nodes, draw(st.sampled_from([1, 3, 8]))).to(dtype)
    node = st.integers(0, num_nodes)
    starts = [0, *sorted(draw(st.lists(node, max_size=4))), num_nodes]
    owner = draw(st.none() | st.integers(0, len(starts) - 2))
    own = range(0) if owner is None else range(starts[owner], starts[owner + 1])
    cuts = draw(st.lists(st.sampled_from(own), max_size=2)) if own else []
    others = [n for n in range(num_nodes) if n not in own]
    cached = draw(st.sets(st.sampled_from(others))) if others else set()
    order = draw(st.permutations(sorted(cached)))
    return matrix, Sharded(matrix, starts, owner, cuts, order), cached, own


@examples(100)
@given(given=shardings(), data=st.data())
def test_rows_are_those_of_the_whole_matrix_and_hits_those_in_the_cache(
    given: tuple[torch.Tensor, Sharded, set[int], range], data: st.DataObject
) -> None:
    matrix, sharded, cached, own = given
    nodes = data.draw(st.lists(st.integers(0, len(matrix) - 1), unique=True))
    rows = sharded.source.select(torch.tensor(nodes, dtype=torch.int64))
    assert torch.equal(rows.read(0, len(nodes), matrix.dtype), matrix[nodes])
    assert torch.equal(rows.whole(), matrix[nodes].float())
    others = [node for node in nodes if node not in own]
    hits = [node for node in others if node in cached]
    assert sharded.source.take_reads() == (len(hits), len(others))
    assert sharded.source.take_reads() == (0, 0)
    # One call, of each remote row once; its number takes four bytes.
    asked = [rows for call in sharded.calls.asked for rows in call.values()]
    assert len(sharded.calls.asked) == (len(others) > len(hits))
    assert sum(map(len, asked)) == len(others) - len(hits)
    assert all(rows.dtype == np.int32 for rows in asked)


def test_own_and_cached_rows_are_not_copied() -> None:
    matrix = torch.randn(10, 4)
    sharded = Sharded(matrix, [0, 4, 10], 0, cached=[7, 5])
    rows = sharded.source.select(torch.tensor([2, 7]))
    own, cache = rows.held
    own[2], cache[0] = 1, 2
    assert rows.whole().tolist() == [[1] * 4, [2] * 4]
    assert sharded.calls.asked == []


def test_a_selection_of_a_selection_is_read_from_the_same_rows() -> None:
    matrix = torch.randn(10, 4)
    rows = Sharded(matrix, [0, 4, 10], 1, cached=[0]).source.select(torch.tensor([3, 9, 0, 5]))
    assert torch.equal(rows.select(torch.tensor([2, 0])).whole(), matrix[[0, 3]])


@on_each_device
def test_a_gpu_gets_a_copy_of_each_batch(device: str) -> None:
    matrix = torch.randn(10, 4).bfloat16()
    source = Sharded(matrix, [0, 4, 10], 1, cached=[0], device=torch.device(device)).source
    nodes = torch.tensor([3, 9, 0, 5])
    rows = source.select(nodes.to(device))
    assert rows.device.type == device
    assert rows.rows.dtype == matrix.dtype
    assert torch.equal(rows.whole().cpu(), matrix[nodes].float())
    assert source.take_reads() == (1, 2)


def test_rows_of_other_machines_are_copied_without_a_wait() -> None:
    matrix = torch.randn(10, 4).bfloat16()
    nodes = torch.tensor([3, 9, 0, 5])
    with present(), watched() as traffic:
        device = torch.device("sim", 0)
        rows = Sharded(matrix, [0, 4, 10], 1, cached=[0], device=device).source.select(nodes).rows
        assert torch.equal(rows.cpu(), matrix[nodes])
    assert [copy.is_blocking for copy in traffic.copies] == [False, True]


@given(st.sets(st.integers(0, 2**40)), st.lists(st.integers(0, 2**40)))
def test_a_cache_finds_its_nodes_and_no_others(nodes: set[int], others: list[int]) -> None:
    known = np.array(sorted(nodes, reverse=True), np.int64)
    cache = RowCache(known, torch.empty(len(known), 1), DistributedContext())
    assert cache.find(known).tolist() == list(range(len(known)))
    numbers = {node: i for i, node in enumerate(known.tolist())}
    asked = np.array(others, np.int64)
    assert cache.find(asked).tolist() == [numbers.get(node, -1) for node in others]


NEEDS = BlockNeeds(norm=True, weight=True, degree=True)
EPOCHS = 2


def _only_its_rows(graph: Graph, context: DistributedContext) -> Graph:
    """The graph with the rows of other machines' nodes missing: one reads them by the exchange."""
    nodes = {}
    for name, of_type in graph.nodes.items():
        own = rank_range(len(of_type), context.machine, context.num_machines)
        rows = np.full_like(of_type.features, 7777)
        rows[own] = of_type.features[own]
        nodes[name] = replace(of_type, features=rows)
    return replace(graph, nodes=nodes)


def _sent(exchange: Exchange, context: DistributedContext) -> int:
    """The bytes that all ranks have sent, once they have arrived and were counted."""
    total = 0, 0
    while True:
        for sent, received in exchange.take_bytes().values():
            total = total[0] + sent, total[1] + received
        everyone = context.gather(total)
        if sum(sent for sent, _ in everyone) == sum(received for _, received in everyone):
            return sum(sent for sent, _ in everyone)


def _remote_reads(
    graph: Graph, plan: SeedPlan, context: DistributedContext
) -> dict[NodeType, list[int]]:
    """By type, the nodes of other machines in the batches of a rank, as often as they are read."""
    loader = cpu_loader(graph, plan, threads=0)
    reads: dict[NodeType, list[int]] = {name: [] for name in graph.nodes}
    for epoch in range(1, EPOCHS + 1):
        loader.set_epoch(epoch)
        for batch in loader:
            for name, ids in batch.n_id_dict.items():
                own = rank_range(len(graph.nodes[name]), context.machine, context.num_machines)
                reads[name] += [n for n in ids.tolist() if not own.start <= n < own.stop]
    return reads


def _hits(
    graph: Graph, plan: SeedPlan, context: DistributedContext, num_rows: dict[NodeType, int]
) -> dict[NodeType, int]:
    """Hits in the cache by the counts of the very batches that this machine's ranks read."""
    own = _remote_reads(graph, plan, context)
    ranks = [
        _remote_reads(graph, replace(plan, rank=rank), context) for rank in context.machine_ranks
    ]
    hits = {}
    for name, size in num_rows.items():
        counts = Counter(node for rank in ranks for node in rank[name])
        cached = set(sorted(counts, key=lambda node: (-counts[node], node))[:size])
        hits[name] = sum(node in cached for node in own[name])
    return hits


Payload = tuple[str, dict[str, Any], dict[NodeType, int]]


def _compare_batches(context: DistributedContext, payload: Payload) -> None:
    """Every batch against the whole graph's, in every rank; `num_rows` of the cache by type."""
    path, features, num_rows = payload
    graph: Graph = StoredGraph.open(Path(path))
    graph = weighted(graph) if graph.is_hetero else graph
    plan = plan_of(graph, rank=context.rank, world_size=context.world_size)
    owners = [context.ranks_of(machine) for machine in range(context.num_machines)]
    keys: dict[str, Any] = {"distributed": {"graph": "sharded"}, "features": features}
    with open_exchange(context, owners=owners, host=context.host, timeout=60) as exchange:
        made = builder(
            _only_its_rows(graph, context),
            NEEDS,
            context=context,
            plan=plan,
            options={"exchange": exchange},
            **keys,
        )
        loader = made.training_loader()
        _sent(exchange, context)
        expected = cpu_loader(graph, plan, needs=NEEDS, threads=0)
        for epoch in range(1, EPOCHS + 1):
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            for batch, same in zip(loader, expected, strict=True):
                assert_same(batch, same)
        found = {name: source.take_reads() for name, source in made.features.items()}
        # A remote row that is not cached, its number of four bytes, and the messages' heads.
        sizes = {name: 4 + graph.nodes[name].features[:1].nbytes for name in found}
        rows_and_ids = sum(
            sum(context.gather(reads - hits)) * sizes[name] for name, (hits, reads) in found.items()
        )
        calls = EPOCHS * len(loader) * context.world_size * context.num_machines * len(found)
        assert rows_and_ids <= _sent(exchange, context) <= rows_and_ids + 200 * calls
        context.barrier()
    assert len(made.why_placed) == len(found)
    reads = _remote_reads(graph, plan, context)
    hits = _hits(graph, plan, context, num_rows)
    assert found == {name: (hits[name], len(reads[name])) for name in num_rows}
    assert sum(map(len, reads.values())) > 0


@pytest.mark.parametrize(
    ("machines", "kind", "features", "num_rows"),
    [
        ((0, 1), "one type", {}, {NODE: 6}),
        ((0, 0, 1), "one type", {"cache_bytes": 5 * 2 * 7 + 3}, {NODE: 7}),
        ((0, 1, 2), "one type", {"cache_ratio": 0.0}, {NODE: 0}),
        ((0, 0, 1), "typed", {}, {"paper": 4, "author": 6}),
        # Types share the bytes by their size: 40 rows of 5 numbers, and 60 of 3.
        ((0, 1), "typed", {"cache_bytes": 190}, {"paper": 10, "author": 15}),
    ],
    ids=str,
)
def test_batches_on_several_machines_are_those_of_the_whole_graph(
    tmp_path: Path,
    machines: tuple[int, ...],
    kind: str,
    features: dict[str, Any],
    num_rows: dict[NodeType, int],
) -> None:
    graph_of(kind, tmp_path / "store", "float16")
    plan = LaunchPlan(len(machines), "cpu", 1, 60, machines)
    launch(_compare_batches, (str(tmp_path / "store"), features, num_rows), plan)
