"""Lists of data sets, models, runs and stores."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from gnntrain.app import compose_config
from gnntrain.data.stores import find_stores
from gnntrain.inventory import dataset_rows, model_rows, run_notes, run_rows, store_rows
from gnntrain.report.runs import read_run
from gnntrain.reporting.rundir import held
from gnntrain.run import prepare
from tests.packages import install
from tests.report.samples import write_run


def test_every_published_data_set_has_its_sizes() -> None:
    rows = {row[0]: row[1:] for row in dataset_rows([])}
    assert rows["cora"] == ["2,708", "10,556", "1,433", "7", "-"]
    assert rows["synthetic_reddit"][:2] == ["232,965", "114,615,892"]
    assert rows["files"] == ["-"] * 5
    assert [name for name, row in rows.items() if row[0] == "-"] == ["files"]


def test_models_are_listed_with_their_parameters() -> None:
    rows = {row[0]: row for row in model_rows()}
    assert rows["sage"][2] == f"{2 * 100 * 128 + 128 + 2 * 128 * 47 + 47:,}"
    assert rows["mlp"][2] == f"{100 * 128 + 128 + 128 * 47 + 47:,}"
    assert "GraphSAGE" in rows["sage"][1]


def test_models_of_installed_packages_are_listed_but_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = """
        [gnntrain.models]
        their_net = listed_package:Net
    """
    install(tmp_path, monkeypatch, "listed_package", "raise RuntimeError", points)
    (model,) = [row for row in model_rows() if row[0] == "their_net"]
    assert "model=their_net" in model[1]


def test_runs_of_sweeps_are_listed_but_not_links_nor_other_programs_folders(tmp_path: Path) -> None:
    job = write_run(tmp_path / "multirun" / "sweep" / "0_model=sage", (), {})
    (tmp_path / "latest").symlink_to(job)
    (tmp_path / "mkdocs").mkdir()
    (tmp_path / "mkdocs" / "config.yaml").touch()
    assert [row[0] for row in run_rows(tmp_path)] == ["multirun/sweep/0_model=sage"]


@pytest.mark.parametrize("summary", ["", "{", "[]", "null", '{"status": 1, "val": 3}'])
def test_a_summary_that_is_broken_breaks_nothing(summary: str, tmp_path: Path) -> None:
    write_run(tmp_path / "good", (), {})
    (write_run(tmp_path / "bad") / "summary.json").write_text(summary)
    rows = {row[0]: row for row in run_rows(tmp_path)}
    assert rows["good"][1] == "completed"
    assert rows["bad"][3:5] == ["-", "-"]


def test_a_run_without_a_summary_is_running_or_was_killed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
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
    folder = write_run(tmp_path / "one")
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as `ls` does for a moment
        threading.Timer(0.1, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        assert read_run(folder).status == "unfinished"
        with held(folder):
            assert run_rows(tmp_path)[0][1] == read_run(folder).status == "running"


def test_prepared_stores_are_listed(tmp_path: Path) -> None:
    config = compose_config(["dataset.num_nodes=300", f"dataset.store_dir={tmp_path}"])
    prepare(config)
    stores = find_stores(tmp_path)
    assert {row[0]: row[-1] for row in dataset_rows(stores)}["synthetic"] == "1 store"
    (row,) = store_rows(stores)
    assert row[0].startswith("synthetic-")
    assert row[1:3] == ["synthetic", "300"]
    assert row[5] == "float32"


def test_a_typed_store_is_listed_with_all_its_nodes_and_edges(tmp_path: Path) -> None:
    keys = ["dataset=synthetic_mag", "dataset.scale=0.001", f"dataset.store_dir={tmp_path}"]
    result = prepare(compose_config(keys))
    assert result["num_nodes"] == {
        "paper": 736,
        "author": 1135,
        "institution": 9,
        "field_of_study": 60,
    }
    assert result["num_features"]["author"] == 0
    assert result["num_edges"]["paper/rev_writes/author"] == 7146
    (row,) = store_rows(find_stores(tmp_path))
    assert row[1:6] == ["synthetic_mag", "1,940", "42,222", "128", "float32"]
