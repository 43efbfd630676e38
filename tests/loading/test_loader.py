"""Mini-batches against the graph itself, and against PyG on all of it, wherever they are made;
seeds, order, state."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.utils import trim_to_layer

from gnntrain.compute.selection import KernelChoice, select
from gnntrain.data.graph import NODE, Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading import build
from gnntrain.loading.batch import Batch
from gnntrain.loading.graph import node_seeds
from gnntrain.loading.loader import SampledLoader, SeedPlan
from gnntrain.loading.placement import Memory
from gnntrain.loading.transfer import BatchStream, send_all
from gnntrain.sampling.base import SampleKey, Seeds
from gnntrain.sampling.block import BlockNeeds, Sample
from gnntrain.sampling.cpu import CPUSampler
from tests.compute.devices import NEEDS_GPU, on_each_device
from tests.examples import examples
from tests.graphs import random_graph, stored
from tests.loading.graphs import (
    KINDS,
    assert_same,
    builder,
    cpu_loader,
    full_loader,
    gpu_loader,
    graph_of,
    plan_of,
)
from tests.packages import install
from tests.simulated_device import device_module, present, watched

ALL = BlockNeeds(norm=True, weight=True, degree=True)


@pytest.fixture(scope="module", params=KINDS)
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Graph:
    return graph_of(request.param, tmp_path_factory.mktemp("graph") / "store")


def loader(graph: Graph, plan: SeedPlan, threads: int = 0) -> SampledLoader:
    return cpu_loader(graph, plan, needs=ALL, threads=threads, prefetch=2)


def seeds_of(batch: Batch) -> list[int]:
    target = "paper" if "paper" in batch.n_id_dict else NODE
    seeds: list[int] = batch.n_id_dict[target][: batch.batch_size].tolist()
    return seeds


# Seeds


@examples(50)
@given(
    num_seeds=st.integers(0, 40),
    batch_size=st.integers(1, 7),
    world_size=st.integers(1, 5),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_every_seed_is_used_once_an_epoch_and_any_number_of_ranks_share_a_batch(
    num_seeds: int, batch_size: int, world_size: int, epoch: int, drop_last: bool
) -> None:
    """Ranks divide it within one seed; one without a seed borrows one that does not count."""
    seeds, keys = np.arange(100, 100 + num_seeds), {"drop_last": drop_last}
    plans = [SeedPlan(seeds, batch_size, r, world_size, **keys) for r in range(world_size)]
    alone = SeedPlan(seeds, batch_size * world_size, **keys)
    used: list[int] = []
    steps = zip(*(plan.batches(epoch) for plan in (alone, *plans)), strict=True)
    for (whole, key), *of_ranks in steps:
        sizes = [share.num_counted for share, _ in of_ranks]
        assert max(sizes) - min(sizes) <= 1
        assert {of_rank for _, of_rank in of_ranks} == {key}
        together = []
        for share, _ in of_ranks:
            assert len(share.seeds) == max(1, share.num_counted)
            assert share.global_batch_size == len(whole.seeds)
            together += share.seeds[: share.num_counted].tolist()
        assert together == whole.seeds.tolist()
        used += together
    kept = num_seeds - num_seeds % alone.batch_size if drop_last else num_seeds
    assert len(used) == len(set(used)) == kept
    assert set(used) <= {*seeds}


def test_epochs_are_shuffled_differently_and_reproducibly() -> None:
    plan = SeedPlan(np.arange(50), 5)
    assert plan.order(1).tolist() == plan.order(1).tolist()
    assert plan.order(1).tolist() != plan.order(2).tolist()
    assert plan.order(1).tolist() != SeedPlan(np.arange(50), 5, seed=1).order(1).tolist()
    assert SeedPlan(np.arange(50), 5, shuffle=False).order(1).tolist() == list(range(50))


# Threads and state


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_loader_goes_on_where_its_state_says_with_any_threads(graph: Graph, threads: int) -> None:
    plan = plan_of(graph, 4)
    first = loader(graph, plan)
    first.set_epoch(2)
    batches = list(first)
    again = loader(graph, plan, threads)
    again.set_epoch(2)
    iterator = iter(again)
    for _ in range(3):
        next(iterator)
    other = loader(graph, plan, threads)
    other.load_state_dict(again.state_dict())
    for batch, expected in zip(other, batches[3:], strict=True):
        assert_same(batch, expected)
    other.set_epoch(2)
    for batch, expected in zip(other, batches, strict=True):
        assert_same(batch, expected)


def with_nodes(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    return replace(sample, nodes={name: change(nodes) for name, nodes in sample.nodes.items()})


def beyond(nodes: Tensor) -> Tensor:
    return torch.cat([nodes, nodes.new_full((1,), 10**6)])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda _: None, "gave a NoneType"),
        (lambda sample: with_nodes(sample, lambda nodes: nodes.flip(0)), "with the seeds"),
        (lambda sample: with_nodes(sample, beyond), "to 1000000 of type"),
    ],
)
def test_a_packages_sampler_that_gives_another_sample_is_named(
    change: Callable[[Sample], Any], told: str, graph: Graph
) -> None:
    class Theirs(CPUSampler):
        def sample(self, seeds: Seeds, key: SampleKey) -> Any:
            return change(super().sample(seeds, key))

    with pytest.raises(UserError, match=f"Theirs .*{told}"):
        next(iter(cpu_loader(graph, plan_of(graph), kind=Theirs)))


def test_an_abandoned_loader_ends_its_threads(graph: Graph) -> None:
    iterator = iter(loader(graph, plan_of(graph, 1), threads=2))
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("gnntrain-loader")]


# The values of a batch


@pytest.mark.parametrize("fan_outs", [(3, 2), (-1, -1, -1), (1,), ()])
def test_a_batch_holds_the_rows_targets_degrees_norms_and_weights_of_the_graph(
    graph: Graph, fan_outs: tuple[int, ...]
) -> None:
    seen = []
    for batch in cpu_loader(graph, plan_of(graph), fan_outs, needs=ALL, threads=0):
        n_id, seeds = batch.n_id_dict, seeds_of(batch)
        with_features = {name for name, nodes in graph.nodes.items() if nodes.num_features}
        assert batch.x_dict.keys() == batch.rows.keys() == with_features
        for name, x in batch.x_dict.items():
            np.testing.assert_array_equal(x, graph.nodes[name].features[n_id[name]])
        np.testing.assert_array_equal(batch.y, graph.labels[seeds])
        assert batch.seed_rows is None
        assert len(batch.hops) == len(fan_outs)
        known = {name: len(ids) for name, ids in n_id.items()}
        assert batch.sample is not None
        for hop, drawn in zip(batch.hops, batch.sample.hops, strict=True):
            assert hop.num_src == known
            known = dict(hop.num_dst)
            for edge_type, block in hop.edges.items():
                edges = graph.edges[edge_type]
                destinations = n_id[edge_type[2]][: block.num_dst]
                np.testing.assert_array_equal(block.degree, np.diff(edges.indptr)[destinations])
                edge_ids = drawn.edges[edge_type].edge_ids
                assert edge_ids is not None
                assert edges.weight is not None
                np.testing.assert_array_equal(block.weight, edges.weight[edge_ids])
                if edges.gcn_norm is not None and not graph.is_hetero:
                    sources = n_id[edge_type[0]][: block.num_src]
                    np.testing.assert_array_equal(block.norm, edges.gcn_norm[sources])
                assert block.edge_ids is None  # the sample has them
        assert known == dict.fromkeys(n_id, 0) | {graph.target: batch.batch_size}
        seen += seeds
    assert sorted(seen) == graph.split("train").tolist()


def test_a_graph_of_one_type_has_pygs_names_without_types(tmp_path: Path) -> None:
    one, typed = (graph_of(kind, tmp_path / kind.replace(" ", "")) for kind in KINDS)
    names = ("x", "n_id", "edge_index", "num_sampled_nodes", "num_sampled_edges")
    batch = next(iter(loader(one, plan_of(one))))
    for name in names:
        (value,) = getattr(batch, f"{name}_dict").values()
        assert getattr(batch, name) is value or getattr(batch, name) == value
    batch = next(iter(loader(typed, plan_of(typed))))
    for name in names:
        with pytest.raises(AttributeError, match="types"):
            getattr(batch, name)


def test_pyg_trims_a_batch_to_what_each_layer_computes(graph: Graph) -> None:
    needs = BlockNeeds(edge_index=True)
    for batch in cpu_loader(graph, plan_of(graph), (-1, -1), needs=needs, threads=0):
        rows, edges = dict(batch.n_id_dict), batch.edge_index_dict
        numbers = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for layer, hop in enumerate(batch.hops):
            rows, edges, _ = trim_to_layer(layer, *numbers, rows, edges)
            assert {name: len(ids) for name, ids in rows.items()} == hop.num_src
            for name, block in hop.edges.items():
                dst = torch.arange(block.num_dst).repeat_interleave(block.indptr.diff())
                expected = zip(block.indices.tolist(), dst.tolist(), strict=True)
                assert sorted(zip(*edges[name].tolist(), strict=True)) == sorted(expected)


# The whole graph


def test_the_whole_graph_is_one_step_with_each_rank_counting_its_share(graph: Graph) -> None:
    seeds, batches = graph.split("train"), []
    for rank in range(4):
        plan = SeedPlan(seeds, 1, rank, 4, drop_last=True)
        full = full_loader(graph, plan, BlockNeeds(norm=True))
        full.set_epoch(1)
        (batch,) = full
        assert list(full) == []
        full.set_epoch(2)
        assert len(list(full)) == len(full) == 1
        batches.append(batch)
    rows = torch.cat([b.seed_rows[: b.num_counted] for b in batches if b.seed_rows is not None])
    assert rows.tolist() == seeds.tolist()
    np.testing.assert_array_equal(
        torch.cat([b.y[: b.num_counted] for b in batches]), graph.labels[seeds]
    )
    for name, ids in batch.n_id_dict.items():
        assert ids.tolist() == list(range(len(graph.nodes[name])))
    for name, x in batch.x_dict.items():
        np.testing.assert_array_equal(x, graph.nodes[name].features)
    for edge_type, edges in graph.edges.items():
        destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        ends = np.stack([edges.indices, destinations])
        np.testing.assert_array_equal(batch.edge_index_dict[edge_type], ends)
        for hop in batch.hops:  # on the store's own pages
            assert hop.edges[edge_type].indices.data_ptr() == edges.indices.ctypes.data
            if not graph.is_hetero:
                np.testing.assert_array_equal(hop.edges[edge_type].norm, edges.gcn_norm)


def test_a_model_that_might_write_to_the_features_gets_its_own(graph: Graph) -> None:
    full = full_loader(graph, plan_of(graph), BlockNeeds(edge_index=True))
    for epoch in (1, 2):
        full.set_epoch(epoch)
        (batch,) = full
        for name, x in batch.x_dict.items():
            np.testing.assert_array_equal(x, graph.nodes[name].features)
            x.zero_()


def test_only_what_the_model_reads_is_there(graph: Graph) -> None:
    for hop in next(iter(cpu_loader(graph, plan_of(graph), threads=0))).hops:
        assert all(block.tensors.keys() == {"indptr", "indices"} for block in hop.edges.values())


def test_a_model_without_edges_gets_its_seeds_alone(graph: Graph) -> None:
    batch = next(iter(builder(graph, options={"uses_graph": False}).training_loader()))
    assert batch.hops == ()
    assert sum(map(len, batch.n_id_dict.values())) == batch.batch_size


# On a device without kernels of ours; what is sent there together, without a wait


@pytest.fixture
def sim() -> Iterator[torch.device]:
    select(KernelChoice("torch"), "sim")
    with present():
        yield torch.device("sim", 0)


@pytest.fixture(scope="module", params=[*zip(KINDS, ("float32", "bfloat16"), strict=True)])
def sim_graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Graph:
    kind, dtype = request.param
    return graph_of(kind, tmp_path_factory.mktemp("graph") / "store", dtype)


def test_the_whole_graph_keeps_64_bit_sources(tmp_path: Path, sim: torch.device) -> None:
    store = stored(tmp_path / "store", random_graph())
    edges = replace(store.only_edges, indices=store.only_edges.indices.astype(np.int64))
    wide = replace(store, edges=dict.fromkeys(store.edges, edges))
    needs = BlockNeeds(edge_index=True)
    (batch,) = builder(wide, needs, sim, sampler={"name": "full"}).training_loader()
    (expected,) = full_loader(wide, plan_of(wide), needs)
    assert_same(batch, expected, "sim")
    (block,) = batch.hops[0].edges.values()
    assert block.indices.dtype == torch.int64


def test_the_whole_graph_lies_once_on_the_device_if_half_its_memory_holds_it(
    sim_graph: Graph, sim: torch.device
) -> None:
    full = {"name": "full"}
    with present() as module:
        made = builder(sim_graph, ALL, sim, sampler=full)
        assert made.graph_on_device is not None
        held = [source.select().rows for source in made.features.values()]
        before = module.memory_allocated(sim) + sum(rows.nbytes for rows in held)
        batch = next(iter(made.training_loader()))
        tensors = [*batch.x_dict.values(), batch.y, *batch.n_id_dict.values()]
        # The norm counts: that of a block is the graph's own.
        tensors += [block.indptr for block in batch.hops[0].edges.values()]
        size = sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)
        assert module.memory_allocated(sim) <= before + size + 1024
    with present(total_memory=4000):
        made = builder(sim_graph, ALL, sim, sampler=full)
        assert made.graph_on_device is None
        assert {source.select().device.type for source in made.features.values()} == {"cpu"}


# What is sent


TYPES = [torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    out = torch.randint(0, 2, shape).to(draw(st.sampled_from(TYPES)))
    return out.t() if out.dim() == 2 and draw(st.booleans()) else out


@pytest.mark.usefixtures("sim")
@examples(50)
@given(given=st.lists(tensors(), max_size=9))
def test_what_arrives_is_what_was_sent_by_one_copy_a_type(given: list[Tensor]) -> None:
    """Each tensor begins where kernels read it in groups; what is there already is not copied."""
    there = torch.arange(4, device="sim")
    with watched() as traffic:
        *sent, same = send_all([*given, there], torch.device("sim", 0))
    assert same is there
    types = {tensor.dtype for tensor in given if tensor.numel()}
    assert len(traffic.copies) == len(types)
    assert not traffic.waits
    for before, after in zip(given, sent, strict=True):
        assert after.device.type == "sim"
        assert after.dtype == before.dtype
        assert after.storage_offset() * after.element_size() % 16 == 0
        assert torch.equal(after.cpu(), before)


def test_what_cannot_be_pinned_is_sent_with_a_wait_and_one_warning(
    sim: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    empty = torch.empty

    def refusing(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory\nFor debugging consider …")
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", refusing)
    given = [torch.arange(5), torch.ones(3)]
    with watched() as traffic:
        sent = [send_all(given, sim) for _ in range(2)]
    assert [copy.is_blocking for copy in traffic.copies] == [True] * 4
    assert all(torch.equal(t.cpu(), u) for found in sent for t, u in zip(found, given, strict=True))
    assert len(caplog.records) == 1


def test_a_batch_of_another_stream_is_complete_when_it_is_used_and_not_freed_before(
    sim: torch.device,
) -> None:
    main, made_on = device_module.current_stream(), []
    ours = BatchStream(sim, is_side=True)

    def make() -> dict[str, Tensor]:
        made_on.append(device_module.current_stream())
        torch.ones(3, device=sim).to("cpu", non_blocking=True)
        return {"x": torch.ones(3, device=sim)}

    (row,) = ours.take(ours.make(make)).values()
    (side,) = made_on
    assert main.stream_id in side.seen  # the graph is there before
    assert main.seen[side.stream_id] == side.count > 0
    assert row.memory.recorded == {main.stream_id}  # type: ignore[attr-defined]


# Made on a GPU: the batches of the host


on_a_gpu = pytest.mark.parametrize("device", [pytest.param("cuda:0", marks=NEEDS_GPU)])

FAN_OUTS = (3, -1)
TRITON: dict[str, Any] = {
    "sampler": {"fan_outs": [3, 2], "backend": "triton"},
    "features": {"placement": "cached", "cache_ratio": 0.5},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    pytest.importorskip("triton", reason="triton is not installed")
    return graph_of("one type", tmp_path_factory.mktemp("graph") / "store", "bfloat16")


def loaders(
    store: Graph,
    device: str,
    needs: BlockNeeds = ALL,
    fan_outs: tuple[int, ...] = FAN_OUTS,
    **options: Any,
) -> tuple[SampledLoader, SampledLoader]:
    return (
        gpu_loader(store, plan_of(store), device, fan_outs, needs=needs, **options),
        cpu_loader(store, plan_of(store), fan_outs, needs=needs, threads=0),
    )


def test_training_alone_gathers_from_wholegraph_and_in_one_thread(
    store: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathers are collective: ranks may evaluate alone, and threads have no common order."""
    library, threads = mock.MagicMock(), set[threading.Thread]()
    memory = library.create_wholememory_tensor.return_value
    memory.get_local_tensor.return_value = torch.empty(0, store.num_features), 0

    def gather(nodes: Tensor) -> Tensor:
        threads.add(threading.current_thread())
        return nodes.new_zeros(len(nodes), store.num_features, dtype=torch.float32)

    memory.gather = gather
    monkeypatch.setitem(sys.modules, "pylibwholegraph.torch", library)
    monkeypatch.setattr(DistributedContext, "gather", lambda _, value: [value] * 2)
    keys: dict[str, Any] = {
        "sampler": {"backend": "numba"},
        "features": {"placement": "wholegraph"},
    }
    with present():
        made = builder(store, context=DistributedContext(0, 2, torch.device("sim")), **keys)
        training, evaluation = made.training_loader(), made.loader(plan_of(store), (3, 2))
        deque(evaluation, 0)
        assert not threads
        deque(training, 0)
    assert threads == {threading.current_thread()}


@on_each_device
@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 1}, {"threads": 2, "prefetch": 4}])
def test_an_epoch_is_the_hosts_however_batches_are_made_ahead(
    store: Graph, device: str, options: dict[str, Any]
) -> None:
    if device == "cpu" and options["threads"] > 1:
        pytest.skip("Triton's interpreter runs in one thread")
    for needs in (ALL, BlockNeeds()):
        pairs = list(zip(*loaders(store, device, needs, **options), strict=True))
        assert len(pairs) == 5
        for batch, expected in pairs:
            assert_same(batch, expected, device)


def test_steps_that_are_made_later_have_one_shape_for_each_number_of_seeds(store: Graph) -> None:
    ours, theirs = loaders(store, "cpu", fan_outs=(3, 2))
    shapes = set()
    for step, expected in zip(ours.seed_batches(), theirs, strict=True):
        batch = ours.padded(step)
        assert batch.is_padded
        assert batch.num_counted == expected.num_counted
        assert batch.global_batch_size == expected.global_batch_size
        blocks = [block for hop in batch.hops for block in hop.edges.values()]
        shapes.add(tuple((b.num_dst, b.num_src, b.num_edges) for b in blocks))
    assert len(shapes) == 2  # 7 seeds, and the 2 that are left
    assert ours.state_dict() == {"epoch": 0, "step": len(ours)}


def sources_of(batch: Batch) -> Tensor:
    (block,) = batch.hops[0].edges.values()
    return block.indices.sum()


@on_a_gpu
def test_no_batch_is_overwritten_while_it_is_in_use(store: Graph, device: str) -> None:
    """What reads a batch is queued behind a long wait; later batches are made meanwhile, and memory
    that is free again is filled with other numbers."""
    ours, theirs = loaders(store, device, prefetch=3)
    sums = []
    for batch in ours:
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]  # torch has no types here
        sums.append((batch.x.sum(dtype=torch.float64), sources_of(batch)))
        nbytes = batch.x.nbytes
        del batch
        for _ in range(20):
            torch.full((nbytes,), 255, dtype=torch.uint8, device=device)
    for (rows, edges), expected in zip(sums, theirs, strict=True):
        assert float(rows) == pytest.approx(float(expected.x.sum(dtype=torch.float64)))
        assert int(edges) == int(sources_of(expected))


def test_a_gpu_sampler_reads_placed_arrays_and_the_place_is_told(store: Graph) -> None:
    made = builder(store, **TRITON)
    loader = made.training_loader()
    assert isinstance(loader, SampledLoader)
    assert made.samples_on_gpu
    assert len(made.why_placed) == 2
    expected = cpu_loader(store, plan_of(store), threads=0)
    for batch, same in zip(loader, expected, strict=True):
        assert_same(batch, same)
    hits, reads = loader.take_reads()
    assert 0 < hits < reads


def test_steps_are_recorded_only_where_the_gpu_reads_the_rows(
    store: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = TRITON | {"trainer": {"cuda_graph": True}}
    assert len(builder(store, **keys).training_loader()) > 0
    monkeypatch.setattr(build, "measured_memory", lambda _: Memory(2**30, host=0))
    with pytest.raises(UserError, match="cuda_graph"):
        builder(store, **keys).training_loader()


@pytest.mark.parametrize("device", [pytest.param("cuda:0", marks=NEEDS_GPU)])
@pytest.mark.parametrize(
    ("keys", "is_recorded"),
    [
        ({}, True),
        ({"features": {"placement": "pinned"}}, True),
        ({"features": {"placement": "memmap"}}, False),
        ({"sampler": {"fan_outs": [3, -1]}}, False),
        ({"sampler": {"fan_outs": [1000, 1000]}, "trainer": {"batch_size": 1000}}, True),
        ({"sampler": {"fan_outs": [3, 2], "backend": "numba"}}, False),
        ({"model": {"name": "sage", "num_layers": 2, "norm": "batch"}}, False),
    ],
    ids=str,
)
def test_one_gpu_records_steps_where_it_reads_and_draws_all(
    store: Graph, device: str, keys: dict[str, Any], is_recorded: bool
) -> None:
    made = builder(store, device=torch.device(device), **keys)
    assert made.training_loader().records_steps is is_recorded


def test_auto_records_no_draws_of_a_package_and_no_examples_that_are_not_nodes(
    store: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    code = "from gnntrain.sampling.gpu import GPUSampler\nclass Own(GPUSampler): ..."
    install(
        tmp_path, monkeypatch, "own_sampler", code, "[gnntrain.samplers]\nown = own_sampler:Own\n"
    )
    drawn = gpu_loader(store, plan_of(store), "cpu", (3, 2), needs=ALL).sampler
    place = DistributedContext(device=torch.device("cuda"))

    def is_recorded(backend: str = "triton", plan: SeedPlan | None = None, **options: Any) -> bool:
        sampler = {"fan_outs": [3, 2], "backend": backend}
        made = builder(store, context=place, plan=plan, options=options, sampler=sampler)
        return made._records_steps(drawn, waits=False)

    assert is_recorded()
    assert is_recorded(plan=plan_of(store, batch_size=10**7))  # of fewer seeds
    assert not is_recorded("own")
    assert not is_recorded(make_seeds=lambda *given: node_seeds(*given))
