"""An exported model of typed graphs gives our logits in plain PyG, where gnntrain is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.data.store import StoredGraph
from gnntrain.models import HeteroGNN, PlainModel
from gnntrain.results.export import export
from tests.graphs import stored
from tests.hetero_graphs import random_hetero_data
from tests.models.hetero_blocks import edge_index_dict, full_hetero_block
from tests.packages import install
from tests.results.runs import agree_without_us, any_run_of

VARIANTS: list[dict[str, Any]] = [
    {"name": "rgcn"},
    {"name": "rgcn", "num_bases": 2, "norm": "batch", "residual": True, "num_layers": 3},
    {"name": "rgcn", "num_blocks": 4, "norm": "layer", "activation": "gelu"},
    {"name": "rgcn", "featureless": "embedding", "num_layers": 1},
    {"name": "hetero_sage", "aggregator": "max", "embedding_channels": 5, "project_inputs": False},
    {"name": "hetero_sage", "aggregator": "sum", "relation_aggregator": "mean", "num_layers": 1},
    {"name": "rgat", "heads": 2, "output_heads": 3, "norm": "layer", "attention_dropout": 0.1},
    {"name": "rgat", "across_relations": True, "project_inputs": False, "negative_slope": 0.1},
    {"name": "hgt", "heads": 2, "norm": "layer", "residual": True, "num_layers": 3},
    {"name": "hgt", "heads": 4, "project_inputs": False},
]

WITHOUT_US = """
import re, sys, warnings
warnings.simplefilter("error", UserWarning)
sys.modules["gnntrain"] = None  # an import of it fails
with warnings.catch_warnings(action="ignore"):
    import torch, torch_geometric.nn
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    sys.modules.pop("model", None)
    x_dict, edge_index_dict, n_id_dict, expected = torch.load(folder + "/graph.pt")
    (use,) = re.findall(r"```python\\n(.*?)```", open(folder + "/README.md").read(), re.S)
    exec(use)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert not model.training
    with torch.no_grad():
        mixed = {t: n[torch.randperm(len(n))] for t, n in n_id_dict.items()}
        x = {t: rows[mixed[t]] for t, rows in x_dict.items()}
        places = {t: n.argsort() for t, n in mixed.items()}
        edges = {
            name: torch.stack([places[name[0]][pair[0]], places[name[2]][pair[1]]])
            for name, pair in edge_index_dict.items()
        }
        batch = model(x, edges, mixed)
    torch.testing.assert_close(batch[places["paper"]], expected, rtol=1e-4, atol=1e-4)
    sys.path.pop(0)
print(len(sys.argv) - 1, "agree")
"""


def typed_store(path: Path, **changes: Any) -> StoredGraph:
    return stored(path, random_hetero_data(**changes))


def exported(path: Path, store: StoredGraph, model: dict[str, Any]) -> Path:
    """An export of random weights; beside it the graph, and our outputs of it."""
    made = any_run_of(path, store, model).eval()
    nodes = store.nodes.items()
    x = {t: torch.tensor(given.features) for t, given in nodes if given.num_features}
    with torch.no_grad():
        if isinstance(made, HeteroGNN):
            outputs = made(x, {}, [full_hetero_block(store)] * made.num_layers)
        else:
            assert isinstance(made, PlainModel)
            outputs = made(x, edge_index_dict(store))
    folder = export(path).path
    n_id = {t: torch.arange(size) for t, size in store.schema.num_nodes.items()}
    torch.save((x, edge_index_dict(store), n_id, outputs), folder / "graph.pt")
    return folder


PACKAGE = """
    from torch_geometric.nn import HeteroConv, SAGEConv, to_hetero
    from torch import nn

    class SAGE(nn.Module):
        def __init__(self, width, out_channels):
            super().__init__()
            self.first = SAGEConv((-1, -1), width)
            self.second = SAGEConv((-1, -1), out_channels)

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    def typed(schema, out_channels, width=8):
        metadata = list(schema.node_types), list(schema.edge_types)
        return to_hetero(SAGE(width, out_channels), metadata)
"""


def test_every_model_gives_the_same_logits_in_plain_pyg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = typed_store(tmp_path / "store")
    one_way = typed_store(tmp_path / "one_way", reverse=False)  # no edge leads to an author
    folders = [
        exported(tmp_path / f"{given.path.name}{i}", given, {"hidden_channels": 8, **model})
        for given in (store, one_way)
        for i, model in enumerate(VARIANTS)
    ]
    data = random_hetero_data()
    nodes = {t.replace("author", "a.b"): given for t, given in data.nodes.items()}
    edges = {(s.replace("author", "a.b"), r, d): ends for (s, r, d), ends in data.edges.items()}
    dotted = typed_store(tmp_path / "dotted", nodes=nodes, edges=edges)
    model = {"hidden_channels": 8, "name": "hgt", "heads": 2}
    folders.append(exported(tmp_path / "dots", dotted, model))
    points = "[gnntrain.models]\ntyped = exported_typed_package:typed"
    install(tmp_path / "site", monkeypatch, "exported_typed_package", PACKAGE, points)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    model = {"name": "typed", "options": {"width": 4}, "embedding_channels": 6}
    folders.append(exported(tmp_path / "run", store, model))
    assert "exported_typed_package" in (folders[-1] / "README.md").read_text()
    assert agree_without_us(WITHOUT_US, folders) == f"{len(folders)} agree\n"


def test_the_card_names_the_types(tmp_path: Path) -> None:
    store = typed_store(tmp_path / "store")
    folder = exported(tmp_path / "run", store, VARIANTS[0])
    about = json.loads((folder / "model.json").read_text())
    assert about["schema"]["num_nodes"] == {"paper": 40, "author": 60, "venue": 7}
    assert about["num_parameters"] > 7 * 8  # the table's among them
    card = (folder / "README.md").read_text()
    for part in ("each paper node", "| author | 3 | 60 |", "paper/cites/paper", "n_id_dict"):
        assert part in card


def test_the_card_says_nothing_that_a_schema_has_replaced(tmp_path: Path) -> None:
    store = typed_store(tmp_path / "store")
    dataset = {"schema": "/x/graph.yaml", "name": "shop", "standardize": True}
    any_run_of(tmp_path / "run", store, VARIANTS[0], dataset=dataset)
    card = (export(tmp_path / "run").path / "README.md").read_text()
    assert "schema: graph.yaml" in card
    assert "standardize: true" in card  # of types that do not say it
    assert "missing: refuse" not in card
