"""An exported model gives our logits in plain PyG, where gnntrain cannot be imported."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.config import Config, FilesConfig, ModelConfig, RunConfig, TrainerConfig
from gnntrain.data.graph import EDGE
from gnntrain.data.store import StoredGraph
from gnntrain.errors import RunError, UserError
from gnntrain.inference import infer
from gnntrain.models import GNN, AnyModel
from gnntrain.results.export import export
from gnntrain.run import train
from gnntrain.tasks import NodeRegression
from tests.graphs import random_graph, stored
from tests.packages import install
from tests.results.runs import agree_without_us, any_run_of, logits_of, run_of

HEADS = {"heads": 2, "output_heads": 2}
VARIANTS: list[dict[str, Any]] = [
    {"name": "sage", "aggregator": "mean"},
    {"name": "sage", "aggregator": "max", "norm": "batch", "jk": "max"},
    {"name": "sage", "aggregator": "sum", "root_weight": False, "normalize": True},
    {"name": "gcn", "norm": "layer", "residual": True, "jk": "cat", "activation": "leaky_relu"},
    {"name": "gat", **HEADS, "norm": "layer", "residual": True, "jk": "cat", "activation": "gelu"},
    {"name": "gatv2", "heads": 4, "negative_slope": 0.1, "norm": "batch", "activation": "none"},
    {"name": "gin", "norm": "batch", "train_eps": True},
    {"name": "gin", "mlp_layers": 3, "jk": "max", "norm": "none"},
    {"name": "mlp", "norm": "batch", "num_layers": 3, "jk": "max"},
    {"name": "mlp", "num_layers": 1, "residual": True},
]


WITHOUT_US = """
import re, sys
sys.modules["gnntrain"] = None  # an import of it fails
import numpy as np, torch
failed = []
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    sys.modules.pop("model", None)
    graph = np.load(folder + "/graph.npz")
    x, edge_index = (torch.from_numpy(graph[name]) for name in ("x", "edge_index"))
    edge_weight = torch.from_numpy(graph["edge_weight"]) if "edge_weight" in graph else None
    (use,) = re.findall(r"```python\\n(.*?)```", open(folder + "/README.md").read(), re.S)
    exec(use)
    found = values if "values =" in use else logits
    torch.testing.assert_close(
        found, torch.from_numpy(graph["logits"]), rtol=1e-4, atol=1e-4, msg=lambda m: folder + m
    )
    assert not model.training
    sys.path.pop(0)
print(len(sys.argv) - 1, "agree")
"""


def graph_of(store: StoredGraph) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` and `edge_index`."""
    dst = np.repeat(np.arange(store.num_nodes), np.diff(store.only_edges.indptr))
    edge_index = np.stack([store.only_edges.indices, dst]).astype(np.int64)
    return torch.from_numpy(np.array(store.target_nodes.features)), torch.from_numpy(edge_index)


def keep_graph(folder: Path, store: StoredGraph, logits: torch.Tensor) -> None:
    """The graph as PyG's users have it, beside the export."""
    x, edge_index = graph_of(store)
    arrays: dict[str, Any] = {"x": x.numpy(), "edge_index": edge_index.numpy()}
    if store.only_edges.weight is not None:
        arrays["edge_weight"] = store.only_edges.weight
    np.savez(folder / "graph.npz", logits=logits.numpy(), **arrays)


def test_every_model_gives_the_same_logits_in_plain_pyg(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    folders = []
    for i, variant in enumerate(VARIANTS):
        logits = logits_of(store, run_of(tmp_path / f"run{i}", store, variant))
        folders.append(export(tmp_path / f"run{i}").path)
        keep_graph(folders[-1], store, logits)
    data = random_graph(task="binary", num_classes=2)
    data.edges[EDGE].weight = (
        np.random.default_rng(0).uniform(0.1, 2, len(data.edges[EDGE].src)).astype(np.float32)
    )
    weighted = stored(tmp_path / "weighted", data)
    logits = logits_of(weighted, run_of(tmp_path / "weighted_run", weighted, {"name": "gcn"}))
    folders.append(export(tmp_path / "weighted_run").path)
    keep_graph(folders[-1], weighted, logits)
    quantities = stored(tmp_path / "quantities", random_graph(task="continuous", num_classes=2))
    keys: dict[str, Any] = {"task": {"type": "node_regression"}, "dataset": {"name": "hills"}}
    model = run_of(tmp_path / "regression", quantities, VARIANTS[4], **keys)
    values = NodeRegression(quantities).values(logits_of(quantities, model))
    folders.append(export(tmp_path / "regression").path)
    keep_graph(folders[-1], quantities, values)
    assert agree_without_us(WITHOUT_US, folders) == f"{len(folders)} agree\n"


def test_the_card_says_what_the_model_is_and_names_no_place_of_this_machine(tmp_path: Path) -> None:
    names = np.array([b"cat", b"dog", "ému".encode()])
    store = stored(tmp_path / "store", random_graph(class_names=names))
    run_of(tmp_path / "run", store, VARIANTS[3])
    done = export(tmp_path / "run", tmp_path / "out")
    assert done.made_with == "gcn"
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert about["class_names"] == ["cat", "dog", "ému"]
    assert about["metrics"]["test"] == {"accuracy": 0.5}
    assert about["best_epoch"] == 3
    card = (tmp_path / "out" / "README.md").read_text()
    for part in ("cat, dog, ému", "| test | 0.5000 |", "hidden_channels: 8", "num_nodes, 5"):
        assert part in card
    for path in (tmp_path / "out").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path


def test_names_in_the_card_are_no_markup(tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>", "[click](http://x)", "a\n\n# b"]
    data = random_graph(class_names=np.array([name.encode() for name in names]))
    run_of(tmp_path / "run", stored(tmp_path / "store", data), {"name": "sage"})
    card = (export(tmp_path / "run", tmp_path / "out").path / "README.md").read_text()
    assert not re.search(r"(?<!\\)<img|(?<!\\)\[click|^# b", card, re.MULTILINE)
    assert r"\<img src=x onerror=alert(1)\>, \[click\](http://x), a \# b" in card


PACKAGE = """
    from gnntrain.models import SAGE

    class Net(SAGE):
        def __init__(self, in_channels, out_channels, width=8):
            super().__init__(in_channels, out_channels, hidden_channels=width, aggregator="sum")

    class ExportedNet(Net):
        is_plain = True
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, with models of another package."""
    points = "[gnntrain.models]"
    points += "".join(f"\n{name} = exported_package:{name}" for name in ("Net", "ExportedNet"))
    install(tmp_path / "site", monkeypatch, "exported_package", PACKAGE, points)
    return tmp_path / "site"


def plugin_run(path: Path, store: StoredGraph, name: str) -> AnyModel:
    return any_run_of(path, store, {"name": name, "options": {"width": 4}})


@pytest.mark.usefixtures("package")
def test_a_gnn_of_another_package_is_exported_if_it_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(tmp_path / "store")
    model = plugin_run(tmp_path / "run", store, "ExportedNet")
    assert isinstance(model, GNN)
    done = export(tmp_path / "run")
    monkeypatch.syspath_prepend(done.path)
    loaded = import_module("model").load()
    del sys.modules["model"]
    torch.testing.assert_close(loaded(*graph_of(store)), logits_of(store, model.eval()))


@pytest.mark.usefixtures("package")
def test_a_gnn_that_does_not_say_how_is_refused_whatever_its_base_says(tmp_path: Path) -> None:
    plugin_run(tmp_path / "run", stored(tmp_path / "store"), "Net")
    with pytest.raises(UserError, match="model Net"):
        export(tmp_path / "run")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    run_of(tmp_path / "run", store, VARIANTS[0])
    export(tmp_path / "run")
    with pytest.raises(UserError, match="is there already"):
        export(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    export(tmp_path / "run", tmp_path / "empty")


def test_a_full_disk_gives_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(tmp_path / "store")
    run_of(tmp_path / "run", store, VARIANTS[0])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match="No space left"):
        export(tmp_path / "run", tmp_path / "new" / "out")
    assert not list((tmp_path / "new").iterdir())


def test_the_card_adds_the_loops_that_training_added_and_rounds_the_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops given twice stay two; a node without an edge, the last one, gets one too."""
    x, nodes = torch.randn(10, 4), torch.arange(8)
    ring = torch.stack([nodes, nodes.roll(-1)])
    edge_index = torch.cat([ring, torch.tensor([[0, 0, 1], [0, 0, 1]])], dim=1)
    masks = {f"{name}_mask": torch.arange(10) % 3 == i for i, name in enumerate(("train", "val"))}
    config = Config(
        dataset=FilesConfig(add_self_loops=True, feature_dtype="bfloat16"),
        model=ModelConfig(name="sage", aggregator="sum"),
        trainer=TrainerConfig(epochs=1, gpus=0),
        run=RunConfig(dir=str(tmp_path / "run")),
    )
    train(config, data={"x": x, "edge_index": edge_index, "y": torch.arange(10) % 2, **masks})
    folder = export(tmp_path / "run").path
    (use, *_) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    monkeypatch.syspath_prepend(folder)
    given: dict[str, Any] = {"x": x, "edge_index": edge_index}
    exec(use, given)
    del sys.modules["model"]
    logits = torch.as_tensor(infer(tmp_path / "run").logits)
    torch.testing.assert_close(given["logits"].view_as(logits), logits, atol=1e-5, rtol=1e-5)
