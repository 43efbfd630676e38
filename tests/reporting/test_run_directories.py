"""Which runs a folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.reporting.rundir import find_run, planned_sweep, run_directories
from tests.report.samples import write_run


def test_the_runs_of_a_folder_are_those_up_to_four_levels_below(tmp_path: Path) -> None:
    folder = tmp_path / "multirun"
    names = ["10", "9", "b/0", "c/2026-11-22/10-00-00", "d/1/2/3", "e/1/2/3/4", ".hydra"]
    for name in names:
        write_run(folder / name)
    write_run(folder / "9" / "checkpoints" / "inner")  # inside of a run
    (folder / "latest").symlink_to(folder / "9")
    found = [str(path.relative_to(folder)) for path in run_directories(folder)]
    assert found == ["9", "10", "b/0", "c/2026-11-22/10-00-00", "d/1/2/3"]


def test_a_sweep_without_a_name_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = Path(planned_sweep(None, None))
    first.mkdir(parents=True)
    assert Path(planned_sweep(None, None)) != first


def test_a_folder_that_is_no_run_hides_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "runs" / "plug")
    here = tmp_path / "plug"
    here.mkdir()
    assert find_run("plug", Path("runs")).resolve() == run
    assert find_run(here, Path("runs")) == here
    (here / "sweep.json").touch()
    assert find_run("plug", Path("runs")).resolve() == here
    (here / "sweep.json").unlink()
    write_run(here)
    assert find_run("plug", Path("runs")).resolve() == here
