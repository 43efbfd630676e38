"""Torch's operators alone train to the published accuracies, by the shipped recipes."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from gnntrain.app import compose_config
from gnntrain.run import train

SHARED = Path(__file__).parents[3] / "shared" / "data"

# Seeds differ by about 0.007, splits of Tolokers by about 0.008.
TOLERANCE = 0.01


def trained(recipe: str, root: Path, folder: Path, *keys: str) -> float:
    """The test metric of a run."""
    given = [f"experiment={recipe}", "compute.kernels=torch", f"dataset.root={root}", *keys]
    given += [f"dataset.store_dir={folder / 'stores'}", f"run.dir={folder / '-'.join(keys)}"]
    summary = train(compose_config(given))
    assert summary["kernels"] == {"kernels": "torch", "replaced": {}}
    metric: float = summary["test"][summary["metric"]]
    return metric


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "planetoid").is_dir(), reason="Cora's raw files are not here")
@pytest.mark.parametrize(("recipe", "published"), [("cora_gcn", 0.815), ("cora_gat", 0.830)])
def test_cora(tmp_path: Path, recipe: str, published: float) -> None:
    root = SHARED / "planetoid"
    found = [trained(recipe, root, tmp_path, f"trainer.seed={seed}") for seed in range(3)]
    assert mean(found) > published - TOLERANCE, found


@pytest.mark.slow
@pytest.mark.skipif(
    not (SHARED / "heterophilous").is_dir(), reason="Tolokers' raw files are not here"
)
def test_tolokers(tmp_path: Path) -> None:
    found = trained("tolokers_gcn", SHARED / "heterophilous", tmp_path, "dataset.split=0")
    assert found > 0.836 - TOLERANCE


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "entities").is_dir(), reason="AIFB's raw files are not here")
def test_aifb(tmp_path: Path) -> None:
    seeds = [f"trainer.seed={seed}" for seed in range(3)]
    found = [trained("aifb_rgcn", SHARED / "entities", tmp_path, seed) for seed in seeds]
    assert mean(found) > 0.958 - 0.028  # one of 36 test nodes


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "heco").is_dir(), reason="HeCo's raw files are not here")
@pytest.mark.parametrize("recipe", ["dblp_rgcn", "dblp_hgt"])
def test_dblp(tmp_path: Path, recipe: str) -> None:
    found = trained(recipe, SHARED / "heco", tmp_path, "trainer.seed=0")
    assert found > 0.9034 - TOLERANCE
