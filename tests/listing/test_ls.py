"""What `gnntrain ls` and `gnntrain cp` tell, also of folders that nobody made for them."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from gnntrain.listing.datasets import datasets
from gnntrain.listing.models import models, samplers
from gnntrain.listing.runs import runs

from gnntrain.app import compose_config
from gnntrain.cli import main
from gnntrain.config import SyntheticConfig
from gnntrain.run import prepare
from tests.packages import install

SUMMARY = {
    "status": "completed",
    "metric": "roc_auc",
    "val": {"roc_auc": 0.75},
    "test": {"roc_auc": 0.5},
    "epochs": 20,
    "best_epoch": 12,
    "seconds_total": 61.0,
}


def make_run(folder: Path, summary: object = None) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("model: {}\n")
    if summary is not None:
        text = summary if isinstance(summary, str) else json.dumps(summary)
        (folder / "summary.json").write_text(text)
    return folder


def test_every_published_data_set_has_its_sizes() -> None:
    sizes, _ = datasets(Path("/nowhere"))
    rows = {row[0]: row[1:] for row in sizes.rows}
    assert rows["cora"] == ["2,708", "10,556", "1,433", "7", "-"]
    assert rows["synthetic_reddit"][:2] == ["232,965", "114,615,892"]
    assert rows["files"] == ["-"] * 5
    assert [name for name, row in rows.items() if row[0] == "-"] == ["files"]


def test_prepared_stores_are_listed_and_folders_that_are_none_are_named(tmp_path: Path) -> None:
    config = compose_config(["dataset.num_nodes=300", f"dataset.store_dir={tmp_path}"]).config
    prepare(config)
    (tmp_path / "photos").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "meta.json").write_text("{")
    (tmp_path / "a_file").touch()
    sizes, prepared = datasets(tmp_path)
    assert {row[0]: row[-1] for row in sizes.rows}["synthetic"] == "1 store"
    (row,) = prepared.rows
    assert row[0].startswith("synthetic-")
    assert row[1] == "300"
    assert row[4] == "float32"
    assert [note.partition(":")[0] for note in prepared.notes] == ["broken", "photos"]


def test_models_are_listed_with_their_parameters() -> None:
    rows = {row[0]: row for row in models().rows}
    assert rows["sage"][2] == f"{2 * 100 * 128 + 128 + 2 * 128 * 47 + 47:,}"
    assert rows["mlp"][2] == f"{100 * 128 + 128 + 128 * 47 + 47:,}"
    assert "GraphSAGE" in rows["sage"][1]


def test_samplers_say_whether_they_can_be_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnntrain.listing.models.find_spec", lambda _: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [row[-1] for row in samplers().rows] == ["yes", "no triton", "no pyg-lib", "yes"]


def test_models_and_samplers_of_installed_packages_are_listed_but_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = """
        [gnntrain.models]
        their_net = listed_package:Net
        [gnntrain.samplers]
        their_draws = listed_package:Draws
    """
    install(tmp_path, monkeypatch, "listed_package", "raise RuntimeError", points)
    (model,) = [row for row in models().rows if row[0] == "their_net"]
    assert "model=plugin model.name=their_net" in model[1]
    (sampler,) = [row for row in samplers().rows if row[1] == "their_draws"]
    assert "sampler.backend=their_draws" in sampler[2]


def test_runs_are_listed_with_status_metric_best_epoch_and_time(tmp_path: Path) -> None:
    make_run(tmp_path / "one", SUMMARY)
    (row,) = runs(tmp_path).rows
    assert row == ["one", "completed", "ROC AUC", "0.7500", "0.5000", "12/20", "1:01"]


def test_runs_of_sweeps_are_listed_but_not_links_nor_other_programs_folders(
    tmp_path: Path,
) -> None:
    job = make_run(tmp_path / "multirun" / "sweep" / "0_model=sage", SUMMARY)
    (tmp_path / "latest").symlink_to(job)
    (tmp_path / "mkdocs").mkdir()
    (tmp_path / "mkdocs" / "config.yaml").touch()
    assert [row[0] for row in runs(tmp_path).rows] == ["multirun/sweep/0_model=sage"]


@pytest.mark.parametrize("summary", ["", "{", "[]", "null", '{"status": 1, "val": 3}'])
def test_a_summary_that_is_broken_breaks_nothing(summary: str, tmp_path: Path) -> None:
    make_run(tmp_path / "good", SUMMARY)
    make_run(tmp_path / "bad", summary)
    rows = {row[0]: row for row in runs(tmp_path).rows}
    assert rows["good"][1] == "completed"
    assert rows["bad"][3:5] == ["-", "-"]


def test_a_run_without_a_summary_is_running_or_was_stopped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n')
    assert runs(tmp_path).rows[0][1:] == ["stopped", "-", "-", "-", "-/2", "-"]
    assert "gnntrain resume RUN" in runs(tmp_path).notes[0]
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert runs(tmp_path).rows[0][1] == "running"
    assert runs(tmp_path).rows[0][1] == "stopped"


def test_without_a_word_all_kinds_are_listed_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(7):
        make_run(tmp_path / "runs" / f"run{number}", SUMMARY)
    assert main(["ls"]) == 0
    out = capsys.readouterr().out
    for part in ("ogbn-papers100M", "GraphSAGE", "sampler=full", "2 more: `gnntrain ls runs`"):
        assert part in out
    assert out.count("completed") == 5
    assert main(["ls", "runs"]) == 0
    assert capsys.readouterr().out.count("completed") == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dataset"], "Did you mean datasets?"),
        (["runs", "/nowhere"], "there is no folder"),
        (["models", "/tmp"], "lie in no folder"),
        (["runs", "a", "b"], "takes one kind and one folder"),
    ],
)
def test_what_cannot_be_listed_is_the_users_mistake(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_recipe_is_copied_and_the_printed_command_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "conf" / "experiment" / "mine.yaml"
    assert main(["cp", "cora_gcn", str(target)]) == 0
    command = capsys.readouterr().out.splitlines()[1].split()
    assert command == ["gnntrain", "--config-dir", f"{tmp_path}/conf", "experiment=mine"]
    target.write_text(target.read_text().replace("hidden_channels: 64", "hidden_channels: 32"))
    config = compose_config(command[3:], [Path(command[2])]).config
    assert config.dataset.name == "cora"
    assert config.to_dict()["model"]["hidden_channels"] == 32


def test_another_groups_option_can_be_copied_too(tmp_path: Path) -> None:
    assert main(["cp", "dataset/synthetic", f"{tmp_path}/dataset/tiny.yaml"]) == 0
    config = compose_config(["dataset=tiny"], [tmp_path]).config
    assert isinstance(config.dataset, SyntheticConfig)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("cora_gnc", "experiment/x.yaml", "Did you mean cora_gcn?"),
        ("modle/sage", "model/x.yaml", "there is no group"),
        ("cora_gcn", "x.yaml", "gnntrain cp cora_gcn experiment/x.yaml"),
        ("cora_gcn", "experiment/cora_gcn.yaml", "experiment/my_cora_gcn.yaml"),
        ("cora_gcn", "experiment/x", "experiment/x.yaml"),
        ("cora_gcn", "experiment/there.yaml", "nothing was overwritten"),
    ],
)
def test_a_copy_that_could_not_be_used_is_refused_with_the_command_that_works(
    source: str,
    target: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "there.yaml").touch()
    assert main(["cp", source, target]) == 2
    assert words in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "experiment").iterdir()] == ["there.yaml"]
