"""A sampler is one class behind an entry point; the package's own are no exception."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain import plugins
from gnntrain.build import sampler_in_words
from gnntrain.config import from_dict
from gnntrain.config.names import SAMPLER_NAMES
from gnntrain.data.graph import EDGE, NODE, FusedCSC
from gnntrain.errors import UserError
from gnntrain.loading.loader import SampledLoader
from gnntrain.sampling.base import FanOuts, FanOutScope, SampleKey, Sampler, Seeds, sampler_class
from gnntrain.sampling.block import Block, Hop, Sample
from tests.graphs import random_graph, stored
from tests.trainers import loaders_of, trainer_of


class FirstNeighbor(Sampler):
    """Takes every node's first in-neighbour, hop by hop: slow, and not random at all."""

    def __init__(
        self,
        edges: FusedCSC,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",  # noqa: ARG002
        replace: bool = False,
        edge_ids: bool = False,  # noqa: ARG002
    ) -> None:
        assert not replace
        self._num_hops = len(fan_outs[EDGE])
        self._indptr, self._indices = edges.part(0)

    def sample(self, seeds: Seeds, key: SampleKey) -> Sample:  # noqa: ARG002
        nodes = seeds.nodes[NODE].tolist()
        hops: list[Hop] = []
        for _ in range(self._num_hops):
            num_dst = len(nodes)
            ids = [int(self._indptr[v]) for v in nodes if self._indptr[v] < self._indptr[v + 1]]
            has_edge = [int(self._indptr[v] < self._indptr[v + 1]) for v in nodes]
            sources = self._indices[ids].tolist()
            nodes += dict.fromkeys(u for u in sources if u not in nodes)
            offsets = torch.tensor([0, *np.cumsum(has_edge).tolist()], dtype=torch.int32)
            local = torch.tensor([nodes.index(u) for u in sources], dtype=torch.int32)
            block = Block(offsets, local, len(nodes), edge_ids=torch.tensor(ids))
            hops.append(Hop({EDGE: block}, {NODE: num_dst}, {NODE: len(nodes)}))
        num_seeds = {NODE: len(seeds.nodes[NODE])}
        return Sample({NODE: torch.tensor(nodes)}, num_seeds, tuple(reversed(hops)))


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
    assert isinstance(trainer.loader, SampledLoader)
    for batch in trainer.loader:
        assert len(batch.hops) == 2 * uses_graph
        for hop in batch.hops:
            block = hop.edges[EDGE]
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
