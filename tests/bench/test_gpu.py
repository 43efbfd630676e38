"""The GPU benchmark runs from end to end; without a GPU on a tiny graph, in the interpreter."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compute.devices import INTERPRETS, NEEDS_GPU

pytest.importorskip("triton", reason="triton is not installed")

from gnntrain.run import prepare_store
from scripts.bench.gpu import (
    CACHED,
    CASES,
    FROM_HOST,
    GATHERING,
    RESIDENT,
    WHOLEGRAPH,
    Case,
    Figure,
    config_of,
    measure,
    measure_apart,
    ratios,
)

TINY: dict[str, dict[str, Any]] = {
    "dataset": {"name": "synthetic", "num_nodes": 150, "num_train": 30, "feature_dtype": "float32"},
    "trainer": {"batch_size": 20},
    "model": {"hidden_channels": 8},
}


def tiny(case: Case, device: torch.device) -> Figure:
    config = config_of(case, epochs=4, smaller=TINY)
    return measure(case, prepare_store(config.dataset).store, config, device, 2)


@pytest.mark.skipif(not INTERPRETS, reason="kernels are compiled: the interpreter is not used")
@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 5, 6, 7, 8, -1])
def test_every_kind_of_case_is_measured(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    figure = tiny(CASES[number], torch.device("cpu"))
    assert len(figure.rounds) == 2
    assert figure.median > 0
    if CASES[number].name == CACHED:
        assert 0 < figure.notes["cache_hit_rate"] < 1
        assert figure.notes["steps"] == 2


def test_a_process_that_crashes_or_hangs_loses_no_other_case(tmp_path: Path) -> None:
    file, cases = tmp_path / "gpu.json", CASES[:3]

    def start(words: list[str]) -> int:
        given = dict(zip(words[2::2], words[3::2], strict=True))
        if given["--here"] == cases[0].name:
            return -11
        figure = Figure(given["--here"], "s", [1.0], 1.0, 1.0, 1.0, None, None)
        Path(given["--json"]).write_text(json.dumps(asdict(figure)))
        return 0

    report = measure_apart(cases, 3, file, start)
    assert [one["name"] for one in report["figures"]] == [case.name for case in cases[1:]]
    assert "exit status -11" in report["failures"][cases[0].name]
    assert json.loads(file.read_text()) == report


def test_ratios_are_told_of_what_was_measured_with_their_bounds() -> None:
    one = Figure(RESIDENT, "s", [1.0], 1.0, 1.0, 1.0, None, None)
    cached = replace(one, name=CACHED, median=1.25)
    from_host = replace(one, name=FROM_HOST, median=9.0)
    assert ratios([one, cached, from_host]) == {
        "speed with 10 % cached, of all rows on the GPU": {
            "value": 0.8,
            "reached": True,
            "must": 0.6,
        },
        "speed-up over the CPU's sampler": {"value": 9.0, "reached": False, "must": 10.0},
    }
    assert ratios([]) == {}


def test_other_work_is_told_as_unfair() -> None:
    notes = {"edges_per_batch": 1000.0, "rows_per_batch": 500.0}
    ours = Figure(GATHERING, "edges/s", [3.0], 3.0, 3.0, 3.0, None, None, notes)
    other = replace(ours, name=WHOLEGRAPH, notes=notes | {"edges_per_batch": 1030.0})
    (told,) = ratios([ours, other]).values()
    assert told == {"unfair": ["edges_per_batch: 1000 and 1030"], "must": 1.5}


@pytest.mark.parametrize("_", [pytest.param(None, marks=NEEDS_GPU)])
def test_a_recorded_epoch_runs_on_a_gpu(
    _: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny(CASES[0], torch.device("cuda", 0)).notes["placement"]
