"""Predictions for typed graphs, the run's own or others: the target's nodes by the user's ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gnntrain.config import model_names
from gnntrain.data.graph import EdgeData, Graph, GraphData
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from gnntrain.inference import load_best
from gnntrain.loading.features import rows_of
from gnntrain.models import HeteroGNN
from gnntrain.results.prediction import predict
from tests.graphs import stored
from tests.hetero_graphs import SIZES, random_hetero_data
from tests.models.hetero_blocks import full_hetero_block
from tests.packages import install
from tests.results.runs import any_run_of

MODELS: list[dict[str, Any]] = [{"name": "rgcn", "num_bases": 2}, {"name": "hgt", "heads": 2}]


def with_ids() -> GraphData:
    data = random_hetero_data()
    ids = {
        "paper": np.array([f"doi:{i}".encode() for i in range(SIZES["paper"])]),
        "venue": np.array([f"venue {i}".encode() for i in range(SIZES["venue"])]),
    }
    nodes = {name: replace(nodes, ids=ids.get(name)) for name, nodes in data.nodes.items()}
    return replace(data, nodes=nodes)


def run_of(folder: Path, model: dict[str, Any]) -> tuple[StoredGraph, HeteroGNN]:
    """The run `folder/run` about a stored graph, and its model of random weights."""
    graph = stored(folder / "store", with_ids(), normalize_features=True)
    dataset = {"name": "files", "store_dir": str(folder / "stores"), "normalize_features": True}
    keys = {"hidden_channels": 8} if model["name"] in model_names() else {}
    made = any_run_of(folder / "run", graph, keys | model, dataset=dataset, trainer={"gpus": 0})
    assert isinstance(made, HeteroGNN)
    return graph, made.eval()


def outputs_of(graph: Graph, model: HeteroGNN) -> torch.Tensor:
    x = {t: rows_of(nodes) for t, nodes in graph.nodes.items() if nodes.num_features}
    with torch.no_grad():
        outputs: torch.Tensor = model(x, {}, (full_hetero_block(graph),) * model.num_layers)
    return outputs


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_nodes_of_the_target_are_written_by_their_ids(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    graph, made = run_of(tmp_path, model)
    wanted = ["doi:30", "doi:2", "doi:39"]
    (tmp_path / "ids.txt").write_text("\n".join(wanted))
    predict(tmp_path / "run", tmp_path / "some.csv", what="logits", nodes=tmp_path / "ids.txt")
    found = pd.read_csv(tmp_path / "some.csv")
    assert found["node"].tolist() == wanted
    outputs = outputs_of(graph, made)
    logits = torch.from_numpy(found.drop(columns="node").to_numpy(np.float32))
    torch.testing.assert_close(logits, outputs[[30, 2, 39]], rtol=1e-4, atol=1e-5)
    told = predict(tmp_path / "run", tmp_path / "all.npz")
    assert told.num_rows == SIZES["paper"]
    rows = np.load(tmp_path / "all.npz")
    assert rows["node"].tolist() == [f"doi:{i}" for i in range(SIZES["paper"])]
    assert rows["class"].tolist() == outputs.argmax(1).tolist()
    predict(tmp_path / "run", tmp_path / "rows.npz", what="embeddings")
    rows = np.load(tmp_path / "rows.npz")
    assert rows["embeddings"].shape == (SIZES["paper"], made.embedding_channels)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_another_graph_may_have_its_types_in_another_order_and_further_ones(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    graph, made = run_of(tmp_path, model)
    other = with_ids()
    editor = replace(other.nodes["author"], num_nodes=5, features=np.ones((5, 2), np.float32))
    edits = ("editor", "edits", "venue"), EdgeData(np.array([0, 4]), np.array([1, 2]))
    other = replace(
        other,
        nodes={"editor": editor, **dict(reversed(list(other.nodes.items())))},
        edges=dict([edits, *reversed(list(other.edges.items()))]),
    )
    best = load_best(tmp_path / "run", data=other)
    assert best.graph.schema.node_types == graph.schema.node_types
    found = best.infer().logits
    torch.testing.assert_close(found, outputs_of(graph, made), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_learnt_rows_are_found_by_the_ids_of_their_nodes(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    graph, made = run_of(tmp_path, model)
    data, order = with_ids(), np.random.default_rng(1).permutation(SIZES["venue"])
    ids, place = data.nodes["venue"].ids, np.argsort(order)
    assert ids is not None
    edges = {}
    for (source, kind, target), (src, dst) in data.edges.items():
        src, dst = (
            place[src] if source == "venue" else src,
            place[dst] if target == "venue" else dst,
        )
        edges[source, kind, target] = EdgeData(src, dst)
    other = changed("venue", ids=ids[order])(replace(data, edges=edges, labelled=False))
    found = load_best(tmp_path / "run", data=other).infer().logits
    torch.testing.assert_close(found, outputs_of(graph, made), rtol=1e-4, atol=1e-5)


def without_venues(data: GraphData) -> GraphData:
    edges = {name: ends for name, ends in data.edges.items() if "venue" not in name}
    return replace(data, nodes={t: data.nodes[t] for t in ("paper", "author")}, edges=edges)


def renamed(data: GraphData) -> GraphData:
    edges = dict(data.edges)
    edges["author", "wrote", "paper"] = edges.pop(("author", "writes", "paper"))
    return replace(data, edges=edges)


def changed(node_type: str, **values: Any) -> Callable[[GraphData], GraphData]:
    def change(data: GraphData) -> GraphData:
        return replace(
            data, nodes={**data.nodes, node_type: replace(data.nodes[node_type], **values)}
        )

    return change


OTHER_IDS = np.array([f"venue {i}".encode() for i in range(1, SIZES["venue"] + 1)])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without_venues, ["node type venue", "paper"]),
        (renamed, ["author/writes/paper", "Did you mean author/wrote/paper"]),
        (changed("author", features=np.ones((60, 4), np.float32)), ["author", "3", "4"]),
        (changed("venue", num_nodes=9, ids=None), ["venue", "7", "9"]),
        (changed("venue", ids=OTHER_IDS), ["venue", "7"]),
        (changed("venue", features=np.ones((7, 2), np.float32)), ["venue", "2"]),
    ],
)
def test_a_graph_that_does_not_fit_is_a_sentence(
    tmp_path: Path, change: Callable[[GraphData], GraphData], named: list[str]
) -> None:
    run_of(tmp_path, MODELS[0])
    with pytest.raises(UserError) as caught:
        predict(tmp_path / "run", tmp_path / "out.csv", data=change(with_ids()))
    told = f"{caught.value.message} {caught.value.hint}"
    assert all(word in told for word in named), told
    assert not (tmp_path / "out.csv").exists()


PACKAGE = """
from gnntrain.models.rgcn import RGCN

def make(schema, out_channels):
    return RGCN(schema, out_channels, hidden_channels=8)
"""


def test_a_plugin_that_has_learnt_the_rows_of_other_nodes_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[gnntrain.models]\ntheir_rgcn = package_of_their_rgcn:make\n"
    install(tmp_path / "site", monkeypatch, "package_of_their_rgcn", PACKAGE, points)
    run_of(tmp_path, {"name": "their_rgcn"})
    other, told = changed("venue", ids=OTHER_IDS)(with_ids()), "learnt a row .* of type venue"
    with pytest.raises(UserError, match=told):
        predict(tmp_path / "run", tmp_path / "out.csv", data=other)
