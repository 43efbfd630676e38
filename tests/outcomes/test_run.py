"""Whole runs through the command line, as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.app import compose_config
from gnntrain.cli import main
from gnntrain.config import checks
from gnntrain.run import evaluate
from gnntrain.run import train as train_here
from tests.pyg_backends import INSTALLED, use_backend
from tests.summaries import epochs_of, summary_of

TINY_GRAPH = ["dataset.num_nodes=600", "trainer.epochs=2"]
TINY = [*TINY_GRAPH, "model.hidden_channels=16", "trainer.batch_size=64"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Command:
    """The command in this process: to import torch and PyG again takes longer than a tiny run."""

    def __init__(self, capsys: pytest.CaptureFixture[str], cwd: Path) -> None:
        self._capsys = capsys
        self._cwd = cwd

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Runs it and returns what it printed."""
        self._capsys.readouterr()
        returned = main(arguments)
        printed = self._capsys.readouterr()
        assert returned == code, printed.out + printed.err
        return printed.out + printed.err

    def train(self, name: str, *arguments: str) -> dict[str, Any]:
        """Trains in a run directory of that name and returns the summary."""
        self(*arguments, f"run.dir={self._cwd / name}")
        return summary_of(self._cwd / name)


@pytest.fixture
def gnntrain(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(tmp_path)
    return Command(capsys, tmp_path)


def test_a_run_leaves_a_whole_run_directory(gnntrain: Command, tmp_path: Path) -> None:
    keys = ["trainer.epochs=3", "model.norm=batch", "logger=[csv,tensorboard]"]
    summary = gnntrain.train("run", *TINY, *keys)
    run = tmp_path / "run"
    assert summary["status"] == "completed"
    assert summary["epochs"] == len(summary["train_loss"]) == 3
    assert summary["metric"] == "accuracy"
    assert summary["peak_rss_bytes"] > 1e8
    lines = epochs_of(run)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    best = lines[summary["best_epoch"] - 1]
    for split in ("train", "val", "test"):
        assert summary[split]["accuracy"] == best[f"{split}/accuracy"]
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["dataset"]["num_nodes"] == 600
    assert (run / "overrides.txt").read_text().splitlines()[0] == TINY[0]
    assert json.loads((run / "env.json").read_text())["seed"] == 0
    assert "epoch 3" in (run / "logs" / "rank_0.log").read_text()
    checkpoints = {path.name for path in (run / "checkpoints").iterdir()}
    assert checkpoints - {"last.prev.pt"} == {"best.pt", "last.pt"}
    assert json.loads((run / "store.json").read_text())["digest"]
    assert list((run / "tensorboard").iterdir())
    assert (run / "metrics.csv").is_file()
    output = gnntrain("evaluate", str(run))  # gives the same numbers again
    for split in ("train", "val", "test"):
        assert f"{summary[split]['accuracy']:.4f}" in output


def test_the_same_seed_gives_the_same_run_and_another_seed_another(gnntrain: Command) -> None:
    first = gnntrain.train("a", *TINY)
    again = gnntrain.train("b", *TINY, "sampler.threads=2")
    other = gnntrain.train("c", *TINY, "trainer.seed=1")
    assert first["train_loss"] == again["train_loss"]
    assert first["test"] == again["test"]
    assert first["train_loss"] != other["train_loss"]


@pytest.mark.parametrize("backend", ["pyg", INSTALLED])
@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")
def test_stock_loaders_of_pyg_train_and_evaluate_as_ours_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    use_backend(backend, monkeypatch)
    monkeypatch.setattr(checks, "find_spec", lambda _: True)  # a stand-in has no package

    def summary(name: str, fan_outs: str) -> dict[str, Any]:
        overrides = [
            *("dataset.num_nodes=300", "dataset.num_train=150", f"dataset.store_dir={cache}"),
            *("trainer.epochs=2", "trainer.batch_size=64", "model.dropout=0"),
            *("model.hidden_channels=16", f"sampler.fan_outs={fan_outs}"),
            *(f"sampler.backend={name}", "evaluation=sampled"),
            f"run.dir={tmp_path / name / str(fan_outs.count('-'))}",
        ]
        return train_here(compose_config(overrides))

    stock, ours = summary("pyg", "[4,3]"), summary("numba", "[4,3]")
    assert stock["train_loss"] == pytest.approx(ours["train_loss"], rel=0.15)
    assert stock["train_loss"] != ours["train_loss"], "they must not draw the same"
    stock, ours = summary("pyg", "[-1,-1]"), summary("numba", "[-1,-1]")
    assert stock["train_loss"] == pytest.approx(ours["train_loss"], rel=1e-5)
    assert stock["test"] == pytest.approx(ours["test"])


def test_a_graph_shows_that_its_edges_matter(gnntrain: Command) -> None:
    keys = ["dataset.num_nodes=4000", "trainer.epochs=15"]
    sage = gnntrain.train("sage", *keys)["test"]["accuracy"]
    mlp = gnntrain.train("mlp", *keys, "model=mlp")["test"]["accuracy"]
    assert sage > mlp + 0.15


def test_two_ranks_are_judged_by_the_statistics_that_the_checkpoint_holds(
    gnntrain: Command,
) -> None:
    """Batch normalisation's, which in training are a rank's own."""
    keys = ["model.norm=batch", "distributed.num_processes=2", "trainer.batch_size=32"]
    found = gnntrain.train("run", *TINY_GRAPH, "model.hidden_channels=16", *keys)
    expected = evaluate("run")["metrics"]
    assert {split: found[split] for split in expected} == expected


def test_too_few_nodes_for_one_full_batch_are_refused_before_a_run_begins(
    gnntrain: Command, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    keys = ["dataset.num_nodes=300", "trainer.drop_last=true", f"run.dir={run}"]
    output = gnntrain(*keys, code=2)
    assert "60 training nodes" in output
    assert not run.exists()


def test_prepare_builds_then_verifies_and_rebuilds_what_was_tampered_with(
    gnntrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keys = ["prepare", "dataset.num_nodes=700"]
    assert "built: none was there" in gnntrain(*keys)
    assert "opened" in gnntrain(*keys)
    (indices,) = tmp_path.glob("gnntrain/stores/synthetic-*/indices.npy")
    content = bytearray(indices.read_bytes())
    content[-1] ^= 1
    indices.write_bytes(content)
    output = gnntrain(*keys)
    assert "rebuilt" in output
    assert "indices" in output


def test_a_users_own_name_goes_with_a_run_from_its_folder_to_its_report(gnntrain: Command) -> None:
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(60, 3)).astype(np.float32))
    np.save("e.npy", rng.integers(0, 60, (240, 2)))
    np.save("y.npy", rng.integers(0, 3, 60))
    graph = ["dataset.features=x.npy", "dataset.edges=e.npy"]
    own = ["dataset=files", "dataset.name=my/county", *graph, "dataset.labels=y.npy"]
    shown = gnntrain(*own, "trainer.epochs=1", "dataset.store_dir=stores")
    assert "my/county" in shown
    run = Path("runs/latest").resolve()
    assert run.name.startswith("my_county-sage-")
    (store,) = [path for path in Path("stores").iterdir() if path.is_dir()]
    assert store.name.startswith("my_county-")
    gnntrain("resume", str(run), "trainer.epochs=2")
    gnntrain("evaluate", str(run))
    gnntrain("predict", str(run), "--out", "own.csv")
    gnntrain("predict", str(run), "--out", "other.csv", *graph)
    assert Path("own.csv").read_text() == Path("other.csv").read_text()
    gnntrain("report", str(run), "--out", "r.html")
    assert "on my/county" in Path("r.html").read_text()
    gnntrain("export", str(run), "--out", "model")
    assert json.loads(Path("model/model.json").read_text())["dataset"] == "my/county"
    listed = gnntrain("ls", "datasets", "stores")
    assert "1 store" in next(line for line in listed.splitlines() if line.startswith("  files"))
