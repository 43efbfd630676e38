"""The GPU benchmark runs from end to end; without a GPU on a tiny graph, in the interpreter."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.compute.devices import INTERPRETS, NEEDS_GPU

pytest.importorskip("triton", reason="triton is not installed")

from scripts.bench.gpu import CASES, config_of, main, run
from scripts.bench.gpu_apart import run_apart
from scripts.bench.gpu_figures import CACHED, FROM_HOST, RESIDENT, Figure, Ratio, ratios

TINY: dict[str, dict[str, Any]] = {
    "dataset": {"name": "synthetic", "num_nodes": 150, "num_train": 30, "feature_dtype": "float32"},
    "trainer": {"batch_size": 20},
    "model": {"hidden_channels": 8},
}


@pytest.mark.skipif(not INTERPRETS, reason="kernels are compiled: the interpreter is not used")
@pytest.mark.slow
def test_every_kind_of_case_is_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "gpu.json"
    chosen = [CASES[number] for number in (1, 5, 6, 7, -1)]
    report = run(
        chosen,
        2,
        Console(quiet=True),
        file,
        ["a", "command"],
        device=torch.device("cpu"),
        smaller=TINY,
        record=lambda body: body,
    )
    figures = report.figures
    assert report.failures == {}
    assert [one.name for one in figures] == [case.name for case in chosen]
    assert all(len(one.rounds) == 2 and one.median > 0 for one in figures)
    written = json.loads(file.read_text())
    assert [one["name"] for one in written["figures"]] == [case.name for case in chosen]
    assert written["machine"]["packages"]["torch"] == metadata.version("torch")
    cached = figures[3].notes
    assert 0 < cached["cache_hit_rate"] < 1
    assert cached["steps"] == 2


@pytest.mark.skipif(not INTERPRETS, reason="kernels are compiled: the interpreter is not used")
def test_a_case_that_fails_is_told_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sampling = next(case for case in CASES if case.stage == "sampling")
    broken = replace(sampling, name="broken", keys=[*sampling.keys, {"sampler": {"fan_outs": []}}])
    file = tmp_path / "new" / "gpu.json"
    place = torch.device("cpu")
    cases = [broken, sampling]
    report = run(cases, 2, Console(quiet=True), file, [], device=place, smaller=TINY)
    assert [one.name for one in report.figures] == [sampling.name]
    written = json.loads(file.read_text())
    assert list(written["failures"]) == ["broken"]
    assert "fan_outs" in written["failures"]["broken"]


def test_a_process_that_crashes_or_hangs_loses_no_other_case(tmp_path: Path) -> None:
    file, names, prepared = tmp_path / "gpu.json", ["crashes", "one", "another"], list[str]()

    def start(arguments: list[str]) -> int:
        given = dict(zip(arguments[2::2], arguments[3::2], strict=True))
        assert given["--rounds"] == "3"
        assert given["--here"] == prepared[-1]
        if given["--here"] == "crashes":
            return -11
        figure = Figure(given["--here"], "s", [1.0], 1.0, 1.0, 1.0, None, None)
        Path(given["--json"]).write_text(json.dumps({"figures": [asdict(figure)]}))
        return 0

    quiet = Console(quiet=True)
    report = run_apart(names, 3, quiet, file, [], prepare=prepared.append, start=start)
    assert [one.name for one in report.figures] == ["one", "another"]
    assert "exit status -11" in report.failures["crashes"]
    written = json.loads(file.read_text())
    assert written["failures"] == report.failures
    assert written["figures"] == [asdict(one) for one in report.figures]


def test_sections_of_another_name_are_not_mixed() -> None:
    gat = next(case for case in CASES if "gat" in case.name)
    config = config_of(gat, epochs=3)
    assert config.model.name == "gat"
    assert config.dataset.name == "synthetic_products"
    assert config.sampler.fan_outs == (15, 10, 5)
    assert config.trainer.precision == "bf16"


def test_ratios_are_told_of_what_was_measured_with_their_bounds() -> None:
    one = Figure(RESIDENT, "s", [1.0], 1.0, 1.0, 1.0, None, None)
    cached = replace(one, name=CACHED, median=1.25)
    from_host = replace(one, name=FROM_HOST, median=9.0)
    assert ratios([one, cached, from_host]) == {
        "speed with 10 % cached, of all rows on the GPU": Ratio(0.8, 0.6, True),
        "speed-up over the CPU's sampler": Ratio(9.0, 10.0, False),
    }
    assert ratios([]) == {}


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        main([])


@pytest.mark.parametrize("_", [pytest.param(None, marks=NEEDS_GPU)])
def test_a_recorded_epoch_runs_on_a_gpu(
    _: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = run([CASES[1]], 2, Console(quiet=True), None, [], smaller=TINY)
    assert report.failures == {}
    assert report.figures[0].notes["placement"]
