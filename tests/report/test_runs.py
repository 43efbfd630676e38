from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.errors import UserError
from gnntrain.report.runs import find_runs, read_run
from tests.report.samples import records_of, write_run


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
