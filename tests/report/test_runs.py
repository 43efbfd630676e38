from __future__ import annotations

import math
from pathlib import Path

import pytest

from gnntrain.errors import UserError
from gnntrain.report.runs import find_runs, read_run
from tests.report.samples import records_of, write_run


def test_a_run_is_what_its_files_say(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", records_of(0.5, 0.75), {}, ["trainer.lr=0.1"], lr=0.1)
    run = read_run(path)
    assert (run.name, run.status, run.metric) == ("a", "completed", "accuracy")
    assert run.config["trainer.lr"] == 0.1
    assert run.overrides == ["trainer.lr=0.1"]
    assert [record.epoch for record in run.records] == [1, 2]
    assert run.result.best_epoch == 2
    assert (run.score("val"), run.score("test")) == (0.75, 0.375)
    assert math.isnan(run.score("train"))


def test_a_run_that_was_killed_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", records_of(0.75, 0.5))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')
    run = read_run(path)
    assert run.status == "unfinished"
    assert run.metric == "accuracy"
    assert (len(run.records), run.result.best_epoch) == (2, 1)


def test_a_run_that_is_still_going_on_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    run = read_run(path)
    with run.run.held():
        assert read_run(path).status == "running"


def test_files_that_are_not_there_leave_gaps(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    for name in ("env.json", "overrides.txt", "metrics.jsonl"):
        (path / name).unlink()
    run = read_run(path)
    assert (run.environment, run.overrides, run.records) == ({}, [], [])
    assert run.metric is None


def test_a_sweep_is_its_trials(tmp_path: Path) -> None:
    for name in ("1_b", "0_a"):
        write_run(tmp_path / "sweep" / name, records_of(0.5), {})
    runs, home = find_runs([tmp_path / "sweep"])
    assert [run.name for run in runs] == ["0_a", "1_b"]
    assert home == tmp_path / "sweep"


def test_runs_of_one_name_are_called_by_their_paths(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / folder / "run") for folder in ("a", "b")]
    runs, home = find_runs([*paths, paths[0]])
    assert [run.name for run in runs] == [str(path) for path in paths]
    assert home is None


def test_an_argument_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("[]")
    for argument in (tmp_path, "nowhere"):
        with pytest.raises(UserError, match=str(argument)):
            find_runs([argument], tmp_path)
