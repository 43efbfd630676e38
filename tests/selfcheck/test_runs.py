"""Runs by the command line on kernels that are broken from outside, in Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.compute.devices import NEEDS_INTERPRETER
from tests.processes import python
from tests.selfcheck.breaking import python_path
from tests.summaries import summary_of

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = [pytest.mark.slow, NEEDS_INTERPRETER]

BROKEN = "aggregate_max=wrong,edge_softmax=abort,pair_scores=hang,gather=raise"
# The further one is for the kernels that read rows there, two of which are broken.
REPLACED = {"aggregate_max", "edge_softmax", "pair_scores", "gather", "host memory"}
RUN = (
    *("dataset=synthetic", "dataset.num_nodes=60", "dataset.avg_degree=4"),
    *("model.hidden_channels=8", "model.dropout=0", "trainer.epochs=2", "trainer.gpus=0"),
)


def gnntrain(folder: Path, *arguments: str, broken: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, whose caches are in it too, on kernels broken as in `breaking`."""
    variables = {
        "PYTHONPATH": python_path(folder),
        "TRITON_INTERPRET": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "BROKEN": broken,
    }
    return python("-m", "gnntrain", *arguments, folder=folder, env=variables)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("selfcheck")


@cache
def first_run(folder: Path) -> str:
    """What the first run on broken kernels says, after the check."""
    done = gnntrain(folder, *RUN, "model=gatv2", "run.dir=first", broken=BROKEN)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_every_broken_kernel_is_found_and_replaced_and_the_run_is_right(folder: Path) -> None:
    warning = first_run(folder)
    found = summary_of(folder / "first")
    replaced = found["kernels"]["replaced"]
    assert set(replaced) == REPLACED
    assert all(name in warning for name in REPLACED)
    ways = {"aggregate_max": "WrongResult", "edge_softmax": "SIGABRT", "pair_scores": "hang"}
    assert all(way in replaced[name] for name, way in ways.items())
    gnntrain(folder, *RUN, "model=gatv2", "run.dir=plain")
    expected = summary_of(folder / "plain")
    assert expected["kernels"]["kernels"] == "numba"
    assert found["train_loss"] == pytest.approx(expected["train_loss"], abs=1e-4)
    assert found["test"] == expected["test"]


def test_a_second_run_checks_nothing_and_replaces_the_same(folder: Path) -> None:
    first_run(folder)
    files = {path: path.stat().st_mtime_ns for path in (folder / "cache").rglob("*.json")}
    done = gnntrain(folder, *RUN, "model=sage", "run.dir=second", broken=BROKEN)
    assert done.returncode == 0, done.stderr
    assert set(summary_of(folder / "second")["kernels"]["replaced"]) == REPLACED
    for path, time in files.items():
        if path.parent.name == "selfcheck":
            assert path.stat().st_mtime_ns == time


def test_who_insists_on_triton_is_refused_before_anything_is_written(folder: Path) -> None:
    first_run(folder)
    insists = "compute.kernels=triton", "run.dir=third"
    done = gnntrain(folder, *RUN, *insists, broken=BROKEN)
    assert done.returncode == 2
    assert all(name in done.stderr for name in REPLACED)
    assert "compute.kernels=auto" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "third").exists()


def test_the_doctor_shows_what_is_wrong(folder: Path) -> None:
    asked = "doctor", "--gpu", "--json", "kernels.json", "trainer.gpus=0"
    done = gnntrain(folder, *asked, broken="gather=raise,aggregate_max=abort")
    assert done.returncode == 1
    assert "shared memory" in done.stdout
    (section,) = json.loads((folder / "kernels.json").read_text())
    wrong = {row["kernel"] for row in section["findings"] if row["judgement"] == "problem"}
    assert wrong == {"gather", "aggregate_max", "host memory"}
