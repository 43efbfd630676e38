"""Lists of runs."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from gnntrain.inventory import run_notes, run_rows
from gnntrain.report.runs import read_run
from gnntrain.reporting.rundir import RunDirectory
from tests.inventory.run_folders import SUMMARY, make_run


def test_runs_of_sweeps_are_listed_but_not_links_nor_other_programs_folders(
    tmp_path: Path,
) -> None:
    job = make_run(tmp_path / "multirun" / "sweep" / "0_model=sage", SUMMARY)
    (tmp_path / "latest").symlink_to(job)
    (tmp_path / "mkdocs").mkdir()
    (tmp_path / "mkdocs" / "config.yaml").touch()
    assert [row[0] for row in run_rows(tmp_path)] == ["multirun/sweep/0_model=sage"]


@pytest.mark.parametrize("summary", ["", "{", "[]", "null", '{"status": 1, "val": 3}'])
def test_a_summary_that_is_broken_breaks_nothing(summary: str, tmp_path: Path) -> None:
    make_run(tmp_path / "good", SUMMARY)
    make_run(tmp_path / "bad", summary)
    rows = {row[0]: row for row in run_rows(tmp_path)}
    assert rows["good"][1] == "completed"
    assert rows["bad"][3:5] == ["-", "-"]


def test_a_run_without_a_summary_is_running_or_was_killed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n')
    assert run_rows(tmp_path)[0][1:] == ["killed", "-", "-", "-", "-/2", "-"]
    killed, resume = run_notes(run_rows(tmp_path))
    assert "lack of memory" in killed
    assert "gnntrain resume RUN" in resume
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run_rows(tmp_path)[0][1] == "running"
    assert run_rows(tmp_path)[0][1] == "killed"


def test_a_run_begins_although_others_look_whether_it_is_running(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as `ls` does for a moment
        threading.Timer(0.1, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        assert read_run(folder).status == "unfinished"
        with RunDirectory(folder).held():
            assert run_rows(tmp_path)[0][1] == read_run(folder).status == "running"
