"""A sampler is one class behind an entry point; the package's own are no exception."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnntrain import plugins
from gnntrain.build import sampler_in_words
from gnntrain.config import from_dict
from gnntrain.config.names import HETERO_SAMPLER_CLASSES, SAMPLER_NAMES
from gnntrain.errors import UserError
from gnntrain.loading.loader import BlockLoader
from gnntrain.sampling.base import SampledSubgraph, SampleKey, Sampler
from gnntrain.sampling.block import Block
from gnntrain.sampling.registry import hetero_sampler_class, sampler_class
from tests.graphs import random_graph, stored
from tests.trainers import loaders_of, trainer_of


class FirstNeighbor(Sampler):
    """Takes every node's first in-neighbour, hop by hop: slow, and not random at all."""

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,  # noqa: ARG002
    ) -> None:
        assert not replace
        self._indptr, self._indices, self._num_hops = indptr, indices, len(fan_outs)

    def sample(self, seeds: Tensor, key: SampleKey) -> SampledSubgraph:  # noqa: ARG002
        nodes = seeds.tolist()
        blocks: list[Block] = []
        num_new_edges, oldest = [], 0
        for _ in range(self._num_hops):
            ids = [int(self._indptr[v]) for v in nodes if self._indptr[v] < self._indptr[v + 1]]
            has_edge = [int(self._indptr[v] < self._indptr[v + 1]) for v in nodes]
            sources = self._indices[ids].tolist()
            num_old, oldest = sum(has_edge[:oldest]), len(nodes)
            nodes += dict.fromkeys(u for u in sources if u not in nodes)
            offsets = torch.tensor([0, *np.cumsum(has_edge).tolist()], dtype=torch.int32)
            local = torch.tensor([nodes.index(u) for u in sources], dtype=torch.int32)
            blocks.append(Block(offsets, local, len(nodes), edge_ids=torch.tensor(ids)))
            num_new_edges.append(len(ids) - num_old)
        order = tuple(reversed(blocks))
        return SampledSubgraph(torch.tensor(nodes), len(seeds), order, num_new_edges)


NOT_A_SAMPLER = object()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an installed package offered samplers."""
    points = [
        EntryPoint(name, f"{__name__}:{at}", plugins.SAMPLERS)
        for name, at in [
            ("first", "FirstNeighbor"),
            ("missing", "NoSuchThing"),
            ("odd", "NOT_A_SAMPLER"),
            ("numba", "FirstNeighbor"),
        ]
    ]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [p for p in points if p.group == group and name in (None, p.name)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    monkeypatch.setattr(plugins, "_plugin_names", plugins._plugin_names.__wrapped__)  # no cache


def test_every_name_stands_for_a_sampler_that_knows_where_it_runs() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    classes = {name: sampler_class(name) for name in SAMPLER_NAMES}
    assert {name for name, sampler in classes.items() if sampler.on_gpu} == {"triton"}
    assert {name for name, sampler in classes.items() if not sampler.thread_safe} == {"pyg"}


def test_the_samplers_of_typed_graphs_have_the_same_names() -> None:
    classes = {name: hetero_sampler_class(name) for name in HETERO_SAMPLER_CLASSES}
    assert classes.keys() == {"numba", "pyg"}
    assert {name for name, sampler in classes.items() if not sampler.thread_safe} == {"pyg"}


@pytest.mark.usefixtures("offered")
def test_a_sampler_of_one_kind_of_graph_is_refused_for_the_other() -> None:
    with pytest.raises(UserError, match="no subclass of HeteroSampler"):
        hetero_sampler_class("first")


@pytest.mark.usefixtures("offered")
def test_samplers_of_other_packages_are_found_and_replace_none_of_ours() -> None:
    assert sampler_class("first") is FirstNeighbor
    assert sampler_class("numba") is not FirstNeighbor


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", "no installed package offers 'other'"),
        ("missing", "NoSuchThing.* cannot be imported"),
        ("odd", "no subclass of Sampler"),
    ],
)
def test_what_is_no_sampler_is_refused(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        sampler_class(name)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "mlp"])
def test_a_run_trains_and_evaluates_with_a_second_sampler(model: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(1).random(240).astype(np.float32)
    store = stored(tmp_path / "store", random_graph(edge_weight=weights))
    keys: dict[str, Any] = {
        "model": {"name": model, "hidden_channels": 8, "num_layers": 2},
        "sampler": {"fan_outs": [1, 1], "backend": "first"},
        "evaluation": {"name": "sampled"},
        "trainer": {"batch_size": 7, "epochs": 2},
    }
    config = from_dict(keys)
    trainer = trainer_of(config, store, tmp_path)
    uses_graph = model != "mlp"
    assert isinstance(trainer.loader, BlockLoader)
    for batch in trainer.loader:
        assert len(batch.blocks) == 2 * uses_graph
        for block in batch.blocks:
            nodes = batch.n_id[: block.num_dst].numpy()
            degrees = np.minimum(np.diff(store.indptr)[nodes], 1)
            np.testing.assert_array_equal(block.indptr.diff(), degrees)
            first = batch.n_id[block.indices.long()].numpy()
            expected = store.indices[store.indptr[nodes[degrees > 0]]]
            np.testing.assert_array_equal(first, expected)
    records = trainer.fit().records
    assert len(records) == 2
    assert sampler_in_words(config, loaders_of(config, store)) == "neighbor [1, 1] (first)"
    assert records[1].metrics["test"]["accuracy"] >= 0
