"""What a run, `evaluate` and `predict` say of a plain PyG model is what its forward pass gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.cli import main
from gnntrain.inference import load_best
from gnntrain.run import evaluate
from tests.packages import install
from tests.summaries import summary_of

PACKAGE = """
import torch
from torch import distributed as dist, nn
from torch_geometric.nn import (
    APPNP, GCN, ChebConv, GCN2Conv, GCNConv, GraphNorm, GraphSAGE, SAGEConv, to_hetero
)

def gcn(inputs, outputs):
    return GCN(inputs, 8, num_layers=2, out_channels=outputs)

class Sage(GraphSAGE):
    "Has weights that get no gradient, and writes into its input."
    def __init__(self, inputs, outputs, width=8):
        super().__init__(inputs, width, 2, outputs)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, edge_index):
        x = nn.functional.dropout(x, 0.5, self.training, inplace=True)
        return super().forward(x, edge_index)

class Deep(nn.Module):
    "GCNII, then APPNP: deeper than model.num_layers."
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, outputs)
        self.convs = nn.ModuleList(GCN2Conv(8, 0.1, 0.5, i + 1) for i in range(8))
        self.spread = APPNP(4, 0.1)

    def forward(self, x, edge_index):
        h = start = self.first(x).relu()
        for conv in self.convs:
            h = conv(h, start, edge_index).relu()
        return self.spread(self.last(h), edge_index)

class Layered(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.a, self.b = GCNConv(inputs, 8), GCNConv(8, outputs)

    def start(self, x, edge_index):
        return self.a(x, edge_index).relu()

    def forward(self, x, edge_index):
        return self.b(self.start(x, edge_index), edge_index)

    def inference_layers(self):
        return [self.start, self.b]

class WrongLayers(Layered):
    def inference_layers(self):
        return [self.a, self.b]

class WrongInput(Layered):
    "Equal on rows of ones."
    def forward(self, x, edge_index):
        return super().forward(x.abs(), edge_index)

class First(Layered):
    "Reads one row by its place, which in a batch is another node's."
    def forward(self, x, edge_index):
        h = self.start(x, edge_index)
        return self.b(h + h[:1], edge_index)

    inference_layers = None

class Global(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.a, self.norm, self.b = SAGEConv(inputs, 8), GraphNorm(8), SAGEConv(8, outputs)

    def forward(self, x, edge_index):
        return self.b(self.norm(self.a(x, edge_index)), edge_index)

class Degrees(nn.Module):
    "Reads out-degrees, which no neighbourhood of in-edges holds."
    def __init__(self, inputs, outputs):
        super().__init__()
        self.a, self.b = ChebConv(inputs, 8, 3), nn.Linear(8, outputs)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index))

class Two(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.a, self.b, self.c = (SAGEConv((-1, -1), n) for n in (8, 8, outputs))

    def forward(self, x, edge_index):
        h = self.b(self.a(x, edge_index).relu(), edge_index).relu()
        return self.c(h, edge_index)

def typed(schema, outputs):
    return to_hetero(Two(outputs), (list(schema.node_types), list(schema.edge_types)))

def wide(inputs, outputs):
    return GraphSAGE(inputs, 8, num_layers=2, out_channels=outputs + 1)

class Pair(Layered):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index), x

class Few(Layered):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index)[:3]

SEEN = []

class Noted(nn.Module):
    "Takes much more memory than the graph."
    def __init__(self, inputs, outputs):
        super().__init__()
        self.a, self.b = SAGEConv(inputs, 2048), SAGEConv(2048, outputs)

    def forward(self, x, edge_index):
        SEEN.append(len(x))
        return self.b(self.a(x, edge_index).relu(), edge_index)

def broken_data(root):
    return Layered(root, 3)  # there

class Fails(Layered):
    "On the last rank, where there are two."
    def forward(self, x, edge_index):
        out = super().forward(x, edge_index)
        return out if dist.is_initialized() and dist.get_rank() == 0 else out["none"]  # here
"""
NAMES = [
    *("gcn", "Sage", "Deep", "Layered", "WrongLayers", "Global", "Degrees", "typed", "wide"),
    *("Pair", "Few", "Fails", "Noted", "WrongInput", "First"),
]
KEYS = [
    "model=plugin",
    "trainer.epochs=2",
    "trainer.gpus=0",
    "distributed.threads=1",
    "run.dir=run",
]
GRAPH = ["dataset.num_nodes=400", "dataset.num_classes=4", "dataset.avg_degree=5"]
TYPED = ["dataset=synthetic_mag", "dataset.scale=0.0005", "dataset.num_classes=4"]
NO_ROOM, BY_50 = "evaluation.memory_limit=1e-9", "evaluation.batch_size=50"


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _models(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = "\n".join(["[gnntrain.models]", *(f"own_{n} = plain_models:{n}" for n in NAMES)])
    points += "\n[gnntrain.datasets]\nbroken = plain_models:broken_data"
    install(here / "site", monkeypatch, "plain_models", PACKAGE, points)


def train(name: str, *keys: str) -> dict[str, Any]:
    graph = TYPED if name == "typed" else GRAPH
    fan_outs = [] if any("fan_outs" in key for key in keys) else ["sampler.fan_outs=[3,3]"]
    assert main([*graph, *KEYS, *fan_outs, f"model.name=own_{name}", *keys]) == 0
    run = [key.removeprefix("run.dir=") for key in (*KEYS, *keys) if key.startswith("run.dir=")][-1]
    return summary_of(run)


def predicted(*keys: str) -> torch.Tensor:
    assert main(["predict", "run", "--what", "logits", "--out", "logits.npy", *keys]) == 0
    return torch.from_numpy(np.load("logits.npy"))


def exported(monkeypatch: pytest.MonkeyPatch, graph: Any) -> torch.Tensor:
    """The forward pass of the exported model over the whole graph."""
    assert main(["export", "run"]) == 0
    monkeypatch.syspath_prepend(Path("run/export").absolute())
    monkeypatch.delitem(sys.modules, "model", raising=False)
    model = __import__("model").load()
    del sys.modules["model"]
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.only_edges.indptr))
    edge_index = torch.from_numpy(np.stack([graph.only_edges.indices, dst]).astype(np.int64))
    with torch.no_grad():
        x = torch.from_numpy(graph.target_nodes.features.copy())
        logits: torch.Tensor = model(x, edge_index)
    return logits


@pytest.mark.parametrize(
    ("name", "keys"), [("gcn", []), ("Deep", [NO_ROOM]), ("Layered", [NO_ROOM, BY_50])]
)
def test_all_numbers_are_those_of_the_forward_pass(
    name: str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = train(name, *keys)
    assert "estimated" not in found
    graph = load_best("run").graph
    logits = exported(monkeypatch, graph)
    assert_alike(predicted(), logits)
    metrics = evaluate("run")["metrics"]
    for split in ("train", "val", "test"):
        nodes = graph.split(split)
        right = (logits.argmax(1).numpy() == graph.labels)[nodes].mean()
        assert found[split]["accuracy"] == metrics[split]["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize(("limit", "is_whole"), [(2**-5, False), (2**-1, True)])
def test_one_pass_computes_all_nodes_where_its_memory_allows(limit: float, is_whole: bool) -> None:
    # 3,000 × 2,048 activations are 24 MB each; features and edges are 2 MB.
    sparse = ["dataset.num_nodes=3000", "dataset.avg_degree=2", "dataset.degree_exponent=4"]
    keys = [f"evaluation.memory_limit={limit}", "evaluation.batch_size=50", "trainer.epochs=1"]
    seen = __import__("plain_models").SEEN
    seen.clear()
    train("Noted", *sparse, *keys)
    assert (3000 in seen) == is_whole
    assert is_whole or max(seen) < 2500


@pytest.mark.parametrize("name", ["WrongLayers", "WrongInput"])
def test_layers_that_are_not_the_model_are_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [*GRAPH, *KEYS, "sampler.fan_outs=[3,3]", f"model.name=own_{name}", NO_ROOM]
    assert main(keys) == 2
    assert "inference_layers" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Global", "Degrees", "First"])
def test_what_no_neighbourhood_gives_is_exact_in_whole_and_called_estimated_else(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Sparse: what a few hops reach is not all of it.
    sparse = ["dataset.num_nodes=3000", "dataset.avg_degree=2", "dataset.degree_exponent=4"]
    assert "the model reads" in train(name, NO_ROOM, "trainer.epochs=1", *sparse)["estimated"]
    assert "estimated" in capsys.readouterr().out
    if name != "Global":  # the rest is the same for all
        return
    assert main(["evaluate", "run"]) == 0
    assert "estimated" in capsys.readouterr().out
    assert main(["export", "run"]) == 0
    assert "estimated" in Path("run/export/README.md").read_text()
    assert main(["report", "run"]) == 0
    assert "Estimated" in Path("run/report.html").read_text()
    assert "estimated" not in train(name, "trainer.epochs=1", "run.dir=whole")


def test_sampled_metrics_are_called_estimated_and_there_are_no_embeddings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = ["model.options={width: 12}", "distributed.num_processes=2", "evaluation=sampled"]
    assert "sampled" in train("Sage", *keys)["estimated"]
    assert main(["predict", "run", "--what", "embeddings", "--out", "rows.npy"]) == 2
    assert "has no embeddings" in capsys.readouterr().err
    assert main([*FULL, "model.name=own_Sage", "run.dir=whole"]) == 0


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("typed", "parts"),
        ("Deep", "served"),
        pytest.param("Deep", "ranks", marks=pytest.mark.slow),
        pytest.param("typed", "ranks in batches", marks=pytest.mark.slow),
    ],
)
def test_they_are_the_same_wherever_they_are_computed(name: str, where: str) -> None:
    keys = []
    if where == "parts":
        graph = TYPED if name == "typed" else GRAPH
        assert main(["partition", *graph, "--parts", "2", "--out", "parts"]) == 0
        keys = ["distributed.graph=partitioned", "distributed.parts=parts"]
    elif where == "served":
        keys = ["distributed.num_processes=2", "distributed.servers=1"]
    else:
        keys = ["distributed.num_processes=2", *([NO_ROOM] if "batches" in where else [])]
    found = train(name, *keys)
    assert "estimated" not in found
    assert {split: found[split] for split in found if split in ("train", "val", "test")} == {
        split: pytest.approx(values, rel=1e-6)
        for split, values in evaluate("run")["metrics"].items()
    }


def test_sampled_training_is_the_same_on_two_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    keys = ["sampler.fan_outs=[2,2,2]", "model.num_layers=3"]
    one = train("typed", *keys, "trainer.batch_size=32")
    ranks = ["trainer.batch_size=16", "distributed.num_processes=2", "run.dir=two"]
    two = train("typed", *keys, *ranks)
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
    assert "find_unused" not in capfd.readouterr().err


def line_with(words: str) -> str:
    """Where a line of the package is, as a message tells it."""
    number = next(i for i, line in enumerate(PACKAGE.splitlines(), 1) if words in line)
    return f"site/plain_models.py:{number})"


FULL, TWO_RANKS = [*GRAPH, *KEYS, "sampler=full"], "distributed.num_processes=2"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([*FULL, "model.name=own_wide"], 2, "[400, 5] for 400 nodes; they must be [400, 4]"),
        ([*FULL, "model.name=own_Pair"], 2, "own_Pair gave outputs a tuple"),
        ([*FULL, "model.name=own_Few", TWO_RANKS], 2, "own_Few gave outputs [3, 4]"),
        ([*FULL, "model.name=own_Fails"], 1, line_with("# here")),
        ([*FULL, "model.name=own_Fails", TWO_RANKS], 1, line_with("# here")),
        # Not the line of PyG's that raised, nor gnntrain's that called.
        (["dataset=broken"], 2, line_with("GCNConv(inputs, 8), GCNConv")),
    ],
)  # fmt: skip
def test_wrong_outputs_and_exceptions_of_a_users_code_are_told(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    err = capsys.readouterr().err
    assert told in err
    if code == 1 and TWO_RANKS in words:
        assert "Rank 1 failed: " in err
        assert "closed by peer" not in err
        assert "Rank 1 failed: " in summary_of()["error"]
