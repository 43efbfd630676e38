"""One builder chooses who samples and where the graph lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from gnntrain.data.graph import Graph
from gnntrain.errors import UserError
from gnntrain.loading import build
from gnntrain.loading.loader import SampledLoader, SeedPlan
from gnntrain.loading.placement import Memory
from gnntrain.sampling.block import BlockNeeds
from tests.loading.graphs import KINDS, assert_same, builder, cpu_loader, graph_of, plan_of

TRITON: dict[str, Any] = {
    "sampler": {"fan_outs": [3, 2], "backend": "triton"},
    "features": {"placement": "cached", "cache_ratio": 0.5},
}


@pytest.fixture(params=KINDS)
def graph(tmp_path: Path, request: pytest.FixtureRequest) -> Graph:
    return graph_of(request.param, tmp_path / "store")


def test_a_cpu_samples_and_reads_the_stores_own_arrays(graph: Graph) -> None:
    needs = BlockNeeds(norm=True, weight=True, degree=True)
    made = builder(graph, needs)
    assert (made.backend, made.samples_on_gpu, made.why_placed) == ("numba", False, ())
    tensors = made.graph
    pairs: list[tuple[Tensor | None, Any]] = [(tensors.targets, graph.labels)]
    for name, edges in graph.edges.items():
        found = tensors.edges[name]
        pairs += [(found.indptr, edges.indptr), (found.indices, edges.indices)]
        pairs += [(found.norm, edges.gcn_norm), (found.weight, edges.weight)]
    for node_type, source in made.features.items():
        pairs.append((source.select().whole(), graph.nodes[node_type].features))
    for tensor, array in pairs:
        assert (None if tensor is None else tensor.data_ptr()) == (
            None if array is None else array.ctypes.data
        )
    val = SeedPlan(graph.split("val"), 4)
    assert made.loader(val, (3, 2)).sampler is made.sampler((3, 2))  # they share its memory
    expected = cpu_loader(graph, plan_of(graph), needs=needs, threads=0)
    for batch, same in zip(made.training_loader(), expected, strict=True):
        assert_same(batch, same)


def test_a_model_without_edges_gets_its_seeds_alone(graph: Graph) -> None:
    batch = next(iter(builder(graph, options={"uses_graph": False}).training_loader()))
    assert batch.hops == ()
    assert sum(map(len, batch.n_id_dict.values())) == batch.batch_size


def test_a_gpu_sampler_reads_placed_arrays_and_the_place_is_told(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    graph = graph_of(KINDS[0], tmp_path / "store")
    made = builder(graph, **TRITON)
    assert made.why_placed == ()
    loader = made.training_loader()
    assert isinstance(loader, SampledLoader)
    assert made.samples_on_gpu
    assert len(made.why_placed) == 2
    expected = cpu_loader(graph, plan_of(graph), threads=0)
    for batch, same in zip(loader, expected, strict=True):
        assert_same(batch, same)
    hits, reads = loader.take_reads()
    assert 0 < hits < reads


def test_steps_are_recorded_only_where_the_gpu_reads_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    graph = graph_of(KINDS[0], tmp_path / "store")
    keys = TRITON | {"trainer": {"cuda_graph": True}}
    assert len(builder(graph, **keys).training_loader()) > 0
    monkeypatch.setattr(build, "measured_memory", lambda _: Memory((2**30,), host=0))
    with pytest.raises(UserError, match="cuda_graph"):
        builder(graph, **keys).training_loader()
