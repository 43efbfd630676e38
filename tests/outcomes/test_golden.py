"""Batches, a store and short runs have the numbers that they had: a rebuilding must keep them.

`RENEW_GOLDEN=1 pytest tests/outcomes/test_golden.py` writes `golden.json` anew, for a commit that
changes numbers on purpose and says why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.cli import main
from tests.packages import install

GOLDEN = Path(__file__).with_name("golden.json")

# A plain PyG model that writes down every training batch it is given. The graphs' feature rows all
# differ, so that rows and edges tell nodes, their order and the edges that were drawn.
PROBE = """
    import hashlib, os
    import torch
    from torch_geometric.nn import Linear

    def note(x, edges):
        digest = hashlib.sha256()
        for name in sorted(x):
            digest.update(name.encode() + x[name].detach().numpy().tobytes())
        for name in sorted(edges):
            digest.update(" ".join(name).encode() + edges[name].long().numpy().tobytes())
        with open(os.environ["GOLDEN_BATCHES"], "a") as file:
            file.write(digest.hexdigest() + "\\n")

    class Probe(torch.nn.Module):
        def __init__(self, in_channels, out_channels):
            super().__init__()
            self.lin = Linear(in_channels, out_channels)

        def forward(self, x, edge_index):
            if self.training:
                note({"": x}, {("", "", ""): edge_index})
            return self.lin(x)

    class TypedProbe(torch.nn.Module):
        def __init__(self, schema, out_channels):
            super().__init__()
            self.target = schema.target
            self.lin = Linear(-1, out_channels)

        def forward(self, x_dict, edge_index_dict):
            if self.training:
                featured = {name: x for name, x in x_dict.items() if not x.requires_grad}
                note(featured, edge_index_dict)
            return self.lin(x_dict[self.target])
"""
ENTRY_POINTS = """
    [gnntrain.models]
    golden = golden_probe:Probe
    golden_typed = golden_probe:TypedProbe
"""
SHORT = ["trainer.epochs=2", "trainer.gpus=0", "distributed.threads=1", "trainer.batch_size=64"]
GRAPH = ["dataset.num_nodes=600", "sampler.fan_outs=[5,3]"]
TYPED = [
    "dataset=synthetic_mag",
    "dataset.scale=0.0005",
    "dataset.num_classes=4",
    "dataset.num_features=8",
    "sampler.fan_outs=[4,3]",
]
SMALL = ["model.hidden_channels=8"]
REGRESSION = [
    "dataset=files",
    "dataset.edges=county/edges.csv",
    "dataset.features=county/nodes.csv",
    "task.type=node_regression",
]
RUNS = {
    "sage": [*GRAPH, *SMALL, "model=sage"],
    "gat": [*GRAPH, *SMALL, "model=gat", "model.heads=2"],
    "rgcn": [*TYPED, *SMALL, "model=rgcn"],
    "rgcn of embeddings": [*TYPED, *SMALL, "model=rgcn", "model.featureless=embedding"],
    "hgt": [*TYPED, *SMALL, "model=hgt", "model.heads=2"],
    "regression": [*REGRESSION, *SMALL, "sampler.fan_outs=[5,3]"],
}
PINNED = ("train_loss", "train", "val", "test", "metric", "best_epoch", "num_parameters", "data")


@pytest.fixture(autouse=True)
def _county(here: Path) -> None:  # noqa: ARG001
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1000, (300, 2))
    rows = (f"c{i},{a},{b},{a - 2 * b}" for i, (a, b) in enumerate(values))
    ends = (f"c{a},c{b}" for a, b in rng.integers(0, 300, (1500, 2)))
    Path("county").mkdir()
    Path("county/nodes.csv").write_text("\n".join(["id,a,b,label", *rows]) + "\n")
    Path("county/edges.csv").write_text("\n".join(["source,target", *ends]) + "\n")


def check(name: str, found: object) -> None:
    """Compare with what was kept under this name, or keep it."""
    kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("RENEW_GOLDEN"):
        GOLDEN.write_text(json.dumps(kept | {name: found}, indent=1, sort_keys=True) + "\n")
    else:
        assert_alike(found, kept[name], name)


def assert_alike(found: Any, kept: Any, place: str) -> None:
    """Equal, but for the last digits of fractions, which another processor may round otherwise."""
    if isinstance(kept, dict):
        assert isinstance(found, dict), place
        assert sorted(found) == sorted(kept), place
        for key, value in kept.items():
            assert_alike(found[key], value, f"{place}: {key}")
    elif isinstance(kept, float):
        assert found == pytest.approx(kept, rel=1e-4), place
    elif isinstance(kept, list):
        assert len(found) == len(kept), place
        for one, other in zip(found, kept, strict=True):
            assert_alike(one, other, place)
    else:
        assert found == kept, place


@pytest.mark.parametrize("kind", ["golden", "golden_typed"])
def test_batches(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, "golden_probe", PROBE, ENTRY_POINTS)
    monkeypatch.setenv("GOLDEN_BATCHES", str(tmp_path / "batches"))
    graph = TYPED if kind == "golden_typed" else GRAPH
    keys = [*graph, *SHORT, "model=plugin", f"model.name={kind}", "run.dir=run"]
    assert main(keys) == 0
    check(f"batches {kind}", (tmp_path / "batches").read_text().split())


@pytest.mark.parametrize("name", [*RUNS, "resumed"])
def test_summaries(name: str, tmp_path: Path) -> None:
    keys = RUNS.get(name, RUNS["sage"])
    assert main([*keys, *SHORT, "run.dir=run"]) == 0
    if name == "resumed":
        assert main(["resume", "run", "trainer.epochs=4"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    check(f"summary {name}", {key: summary[key] for key in PINNED if key in summary})
