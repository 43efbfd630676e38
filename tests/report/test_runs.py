from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from gnntrain.errors import UserError
from gnntrain.report.findings import Findings
from gnntrain.report.page import page_of
from gnntrain.report.runs import ReportedRun, best_of, differences, find_runs, groups_of, read_run
from gnntrain.report.tables import groups_table, runs_table
from gnntrain.reporting.trials import Spread
from tests.report.samples import records_of, write_run


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def make(name: str, value: float, summary: Any = (), **keys: Any) -> ReportedRun:
        return read_run(write_run(tmp_path / name, records_of(value), dict(summary), **keys))

    return make


def test_a_repetition_that_failed_does_not_count(make: Any) -> None:
    failed = {"status": "failed", "error": "out of memory"}
    runs = [make("a", 0.5, seed=0), make("b", 0.1, failed, seed=1)]
    (group,) = groups_of(runs)
    assert group.spread("val") == Spread(0.5, None)
    assert groups_table([group]).rows[0][2] == "1 of 2"
    assert groups_table(groups_of(runs[1:] * 2)).rows[0][2] == "0 of 2"


def test_no_run_is_the_best_where_none_has_the_metric(make: Any) -> None:
    runs = [make("a", math.nan, seed=0), make("b", math.nan, seed=1)]
    page = page_of(runs, best_of(runs), Findings())
    assert page["keys"][0][0] == "runs"
    assert any("none is the best, a is shown" in note for note in page["notes"])
    assert runs_table(runs, runs[0]).best is None


def test_the_best_run_is_the_same_in_any_order_and_of_equal_ones_the_first_by_name(
    make: Any,
) -> None:
    accuracies = [make("b", 0.7), make("a", 0.7), make("c", 0.6)]
    d, e, f = make("d", 0.9), make("e", 0.8), make("f", 0.95)
    others = [
        dataclasses.replace(d, metric="roc_auc", config={**d.config, "dataset.metric": "roc_auc"}),
        dataclasses.replace(e, summary={}, config={**e.config, "dataset.name": "another"}),
        dataclasses.replace(f, metric=None),
    ]
    for runs in ([*accuracies, *others], [*others[::-1], *accuracies[::-1]]):
        assert best_of(runs).name == "a"
        page = page_of(runs, best_of(runs), Findings())
        assert any("not ranked" in note for note in page["notes"])
        assert page["keys"][0][0] == "test accuracy"
        table = groups_table(page["comparison"]["groups"])
        assert table.best is not None
        assert best_of(runs) in page["comparison"]["groups"][table.best].runs
    page = page_of(accuracies, best_of(accuracies), Findings())
    assert not any("not ranked" in note for note in page["notes"])


def test_settings_over_other_splits_are_not_ranked_against_each_other(make: Any) -> None:
    runs = [
        dataclasses.replace(run, config={**run.config, "dataset.split": split})
        for split, run in enumerate([make("a", 0.5, lr=0.1), make("b", 0.6, lr=0.1)])
    ]
    other = make("c", 0.9, lr=0.2)
    runs.append(dataclasses.replace(other, config={**other.config, "dataset.split": 2}))
    assert best_of(runs).name == "b"
    page = page_of(runs, best_of(runs), Findings())
    assert any("splits" in note and "split 0, 1" in note for note in page["notes"])
    table = groups_table(page["comparison"]["groups"])
    assert ["not ranked" in row[0] and "split 2" in row[0] for row in table.rows] == [False, True]
    assert table.best == 0


def with_model(run: ReportedRun, **keys: Any) -> ReportedRun:
    config = {key: value for key, value in run.config.items() if not key.startswith("model.")}
    return dataclasses.replace(run, config=config | {f"model.{k}": v for k, v in keys.items()})


def test_keys_that_the_other_model_does_not_have_are_no_differences(make: Any) -> None:
    gcn = with_model(make("a", 0.5), name="gcn", num_layers=2)
    gat = with_model(make("b", 0.6), name="gat", num_layers=2, heads=4)
    wide = with_model(make("c", 0.7), name="gat", num_layers=2, heads=8)
    assert differences([gcn, gat]) == ["model.name"]
    assert differences([gcn, gat, wide]) == ["model.name", "model.heads"]
    assert [group.varied[0] for group in groups_of([gcn, gat])] == ["model=gcn", "model=gat"]
    assert len(groups_of([gcn, gat, wide])) == 3


def test_where_a_run_is_kept_makes_no_other_setting(make: Any) -> None:
    runs = [make("a", 0.5, log_every=1), make("b", 0.5, log_every=2, max_restarts=1)]
    assert differences(runs) == []
    assert len(groups_of(runs)) == 1


# Runs


def test_a_run_that_was_killed_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", records_of(0.75, 0.5))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')
    run = read_run(path)
    assert run.status == "unfinished"
    assert run.metric == "accuracy"
    assert (len(run.records), run.result.best_epoch) == (2, 1)


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
