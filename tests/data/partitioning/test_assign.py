"""Which node goes to which part: every part has nodes, and about as much as the others."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import GraphData
from gnntrain.data.partitioned_graph import Method
from gnntrain.data.partitioning import assign as assigning
from gnntrain.data.partitioning.assign import SLACK, PartIndex, assign, stream
from gnntrain.data.store import StoredGraph
from tests.data.oracles import cut_edges, graphs, small_graph
from tests.examples import examples
from tests.graphs import stored


def communities(num_nodes: int = 4000, degree: int = 10, seed: int = 0) -> GraphData:
    """Four communities of nodes whose numbers are shuffled; a tenth of the edges leaves them.

    Some nodes have many more in-edges than others, and the training nodes are in two communities.
    """
    rng = np.random.default_rng(seed)
    community = rng.permutation(num_nodes) % 4
    members = [np.flatnonzero(community == c) for c in range(4)]
    src = rng.integers(0, num_nodes, num_nodes * degree)
    size = num_nodes // 4
    places = (size * rng.random(len(src)) ** 2).astype(np.int64)
    dst = np.stack(members)[community[src], places]
    leaves = rng.random(len(src)) < 0.1
    dst[leaves] = rng.integers(0, num_nodes, leaves.sum())
    train = np.concatenate([members[0][::3], members[1][::5]])
    rest = np.setdiff1d(np.arange(num_nodes), train)
    return small_graph(
        num_nodes, src=src, dst=dst, symmetric=True,
        splits={"train": train, "val": rest[:50], "test": rest[50:]},
    )  # fmt: skip


def loads(store: StoredGraph, part_of: PartIndex, num_parts: int) -> npt.NDArray[np.float64]:
    """The largest part's nodes, edges and training nodes, over the mean."""
    is_train = np.zeros(store.num_nodes)
    is_train[store.split("train")] = 1
    weights = [np.ones(store.num_nodes), np.diff(store.indptr), is_train]
    sums = np.array([np.bincount(part_of, w, num_parts) for w in weights])
    largest: npt.NDArray[np.float64] = sums.max(axis=1) / np.maximum(sums.mean(axis=1), 1e-9)
    return largest


@pytest.mark.parametrize("method", ["streaming", "random"])
@examples(30)
@given(st.data())
def test_every_part_has_a_node(method: Method, data: st.DataObject) -> None:
    drawn = data.draw(graphs())
    num_parts = data.draw(st.integers(1, drawn.target_nodes.num_nodes))
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder) / "store", drawn)
        part_of = assign(store, num_parts, method)
        again = assign(store, num_parts, method)
    assert set(part_of.tolist()) == set(range(num_parts))
    assert part_of.tolist() == again.tolist()


@pytest.mark.parametrize(("num_edges", "num_parts"), [(0, 3), (12, 12)])
def test_every_part_has_a_node_by_metis(tmp_path: Path, num_edges: int, num_parts: int) -> None:
    pytest.importorskip("pymetis", reason="pymetis is not installed")
    store = stored(tmp_path, small_graph(12, num_edges))
    assert set(assign(store, num_parts, "metis").tolist()) == set(range(num_parts))


@pytest.fixture(scope="module")
def store_of_communities(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    return stored(tmp_path_factory.mktemp("communities") / "store", communities())


@pytest.mark.parametrize(
    ("method", "num_parts"), [("streaming", 2), ("streaming", 7), ("metis", 4), ("random", 7)]
)
def test_parts_are_balanced_and_a_partitioner_cuts_fewer_edges_than_chance(
    store_of_communities: StoredGraph, method: Method, num_parts: int
) -> None:
    if method == "metis":
        pytest.importorskip("pymetis", reason="pymetis is not installed")
    store = store_of_communities
    part_of = assign(store, num_parts, method)
    assert (loads(store, part_of, num_parts) <= SLACK + 1e-9).all()
    by_chance = 1 - 1 / num_parts
    share = cut_edges(store, part_of) / store.num_edges
    if method == "random":
        assert abs(share - by_chance) < 0.02
    else:
        assert share < 0.75 * by_chance


def test_random_parts_differ_by_one_node_and_one_training_node(tmp_path: Path) -> None:
    store = stored(tmp_path, small_graph(1003, 3000))
    part_of = assign(store, 7, "random")
    for sizes in (np.bincount(part_of), np.bincount(part_of[store.split("train")])):
        assert sizes.max() - sizes.min() <= 1
    # About a seventh of the pairs of neighbouring numbers meet, as under independent draws.
    assert 0.05 < np.mean(part_of[:-1] == part_of[1:]) < 0.2


def slow_pass(
    store: StoredGraph, part_of: list[int], num_parts: int, factor: float, *, is_first: bool
) -> None:
    """A pass of `stream`, as `gnntrain.data.partitioning.assign` describes it."""
    train, bounds = set(store.split("train").tolist()), store.indptr.tolist()
    own = [(1, v - u, int(node in train)) for node, (u, v) in enumerate(pairwise(bounds))]
    shares = [sum(loads) / num_parts for loads in zip(*own, strict=True)]
    limits = [
        max(1.1 * share // 1, -(-share // 1), max(node[i] for node in own) if i == 1 else 1)
        for i, share in enumerate(shares)
    ]
    cost = max(store.num_edges, 1) / 2 / num_parts
    placed: dict[int, int] = {} if is_first else dict(enumerate(part_of))
    for node in range(store.num_nodes):
        placed.pop(node, None)
        scores = []
        for part in range(num_parts):
            excess = growth = 0.0
            for i in range(3):
                load = sum(own[v][i] for v, p in placed.items() if p == part)
                if own[node][i]:
                    unit = 1 / shares[i]
                    excess = max(excess, (load + own[node][i] - limits[i]) * unit)
                    growth += own[node][i] * unit * (load * unit) ** 0.5
            sources = store.indices[bounds[node] : bounds[node + 1]].tolist()
            gain = sum(placed.get(source) == part for source in sources)
            scores.append((-excess, gain - 1.5 * cost * factor * growth, -part))
        placed[node] = -max(scores)[2]
    part_of[:] = [placed[node] for node in range(store.num_nodes)]


@examples(60)
@given(st.data())
def test_a_pass_places_each_node_by_its_score(data: st.DataObject) -> None:
    drawn = data.draw(graphs())
    num_parts = data.draw(st.integers(1, min(4, drawn.target_nodes.num_nodes)))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        store = stored(Path(folder) / "store", drawn)
        patch.setattr(assigning, "_FACTORS", (2.0, 0.7))
        patch.setattr(assigning, "_NODES_AT_ONCE", 5)
        found = stream(store, num_parts)
        expected = [0] * store.num_nodes
        slow_pass(store, expected, num_parts, 2.0, is_first=True)
        slow_pass(store, expected, num_parts, 0.7, is_first=False)
    assert found.tolist() == expected
