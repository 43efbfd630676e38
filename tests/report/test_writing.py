from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from gnntrain.cli import main
from gnntrain.config import Config, ModelConfig, SyntheticConfig, TrainerConfig
from gnntrain.config.schema import RunConfig
from gnntrain.errors import UserError
from gnntrain.report.findings import findings_of
from gnntrain.report.runs import read_run
from gnntrain.report.writing import write_report
from gnntrain.run import evaluate, train
from tests.report.samples import records_of, write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    dataset = SyntheticConfig(num_nodes=400, num_classes=3, store_dir=str(folder / "stores"))
    config = Config(
        dataset=dataset,
        model=ModelConfig(name="sage", hidden_channels=16),
        trainer=TrainerConfig(epochs=3, gpus=0),
        run=RunConfig(dir=str(folder / "run")),
    )
    train(config, overrides=["trainer.epochs=3"])
    return folder / "run"


def text_of(page: Path) -> str:
    """What a page says, without its scripts and styles."""
    markup = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", markup).split())


def test_a_page_says_all_there_is(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trained)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(trained / "report.html")
    text = text_of(trained / "report.html")
    for title in ("Confusion on test", "Scores by class", "Nodes as the model sees them"):
        assert title in text
    accuracy = json.loads((trained / "summary.json").read_text())["test"]["accuracy"]
    assert f"{accuracy:.4f}" in text


def test_the_confusion_matrix_gives_the_accuracy_that_evaluate_gives(trained: Path) -> None:
    findings = findings_of(read_run(trained))
    for split, scores in findings.scores.items():
        assert scores.confusion is not None
        accuracy = scores.confusion.trace() / scores.confusion.sum()
        assert accuracy == pytest.approx(evaluate(trained)["metrics"][split]["accuracy"])
    assert findings.projection is not None
    assert findings.projection.source == "input of the last layer"
    assert findings.notes == []


def test_a_run_whose_graph_is_gone_says_what_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records_of(0.5, 0.6), {})
    text = text_of(write_report([run]))
    assert "Degrees, scores and embeddings are missing" in text
    assert "Accuracy" in text
    assert "Degree distribution" not in text


def test_a_run_whose_checkpoint_is_gone_still_shows_its_graph(
    trained: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    text = text_of(write_report([run]))
    assert "Scores and embeddings are missing" in text
    assert "Degree distribution" in text


def test_a_page_names_the_kernels_that_were_replaced(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["kernels"] == {"kernels": "numba", "replaced": {}}
    summary["kernels"] = {"kernels": "triton", "replaced": {"gather": "off by 3e-2"}}
    (run / "summary.json").write_text(json.dumps(summary))
    text = text_of(write_report([run]))
    assert "replaced where they failed: gather." in text
    assert "torch: off by 3e-2" in text


FILES = [
    *("overrides.txt", "env.json", "store.json", "metrics.jsonl", "summary.json"),
    *("checkpoints/best.pt", "checkpoints/last.pt"),
]


@pytest.mark.parametrize(
    "content", [None, pytest.param(b"\0\xff{", marks=pytest.mark.slow), b"", b"[1]"]
)
def test_missing_and_broken_files_leave_gaps_in_a_page(
    trained: Path, tmp_path: Path, content: bytes | None
) -> None:
    """Each file on its own; those that are empty, or of another shape, all at once."""
    for names in [FILES] if content in (b"", b"[1]") else [[name] for name in FILES]:
        run = shutil.copytree(trained, tmp_path / names[0].replace("/", "-"))
        for name in names:
            with_file(run, name, content)
        assert "Configuration" in write_report([run]).read_text()
    run = with_file(shutil.copytree(trained, tmp_path / "run"), "config.yaml", content)
    with pytest.raises(UserError, match=r"config\.yaml"):
        write_report([run])


def with_file(run: Path, name: str, content: bytes | None) -> Path:
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    return run


def test_a_failed_run_tells_its_error_and_shows_what_is_there(tmp_path: Path) -> None:
    ending = {"status": "failed", "error": "The loss is nan.", "best_epoch": None}
    records = [replace(one, train_loss=math.nan, metrics={}) for one in records_of(0.5, 0.5)]
    run = write_run(tmp_path / "run", records, ending)
    text = text_of(write_report([run]))
    assert "Status failed: 2 of 20 epochs" in text
    assert "The loss is nan." in text
    assert "training loss of 2 epochs is not a finite number" in text
    assert "No epoch was evaluated" in text


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_other_tasks_have_pages(tmp_path: Path, task: str) -> None:
    rows = {
        "binary": [f"{node},{node % 2}" for node in range(40)],
        "multilabel": [f"{node},{node % 2},{node % 3 == 0:d},1" for node in range(40)],
    }[task]
    heads = {"binary": "id,label", "multilabel": "id,label_a,label_b,label_<i>"}[task]
    (tmp_path / "labels.csv").write_text("\n".join([heads, *rows]))
    edges = [f"{node},{(node + 2) % 40}" for node in range(40)]
    (tmp_path / "edges.csv").write_text("\n".join(["source,target", *edges]))
    features = [f"{node},{node % 2 + 0.5},{node % 3}" for node in range(40)]
    (tmp_path / "features.csv").write_text("\n".join(["id,a,b", *features]))
    keys = [
        "dataset=files",
        *(f"dataset.{name}={tmp_path / name}.csv" for name in ("edges", "features", "labels")),
        *(f"dataset.task={task}", "trainer.epochs=2", "model.hidden_channels=4"),
        *(f"dataset.store_dir={tmp_path / 'stores'}", f"run.dir={tmp_path / 'run'}"),
        "trainer.gpus=0",
    ]
    assert main(keys) == 0
    page = write_report([tmp_path / "run"])
    text = text_of(page)
    assert ("ROC curve" in text) == (task == "binary")
    assert ("Confusion on test" in text) == (task == "binary")
    assert "Scores by class" in text


def test_several_runs_are_compared_by_their_settings(tmp_path: Path) -> None:
    for seed in (0, 1):
        for lr in (0.1, 0.2):
            value = 0.5 + lr + 0.1 * seed
            write_run(tmp_path / f"{lr}-{seed}", records_of(value), {}, lr=lr, seed=seed)
    runs = sorted(tmp_path.iterdir())
    page = write_report(runs, tmp_path / "all.html")
    text = text_of(page)
    assert "4 runs on synthetic" in text
    assert "They differ in trainer.lr, trainer.seed." in text
    assert "0.7500 ± 0.0707" in text
    assert "best setting: lr=0.2" in text
    assert "Of the run 0.2-1." in text


def test_the_folder_of_a_sweep_is_where_its_page_goes(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}_trainer.seed={seed}", records_of(0.5), {}, seed=seed)
    (tmp_path / "sweep.json").write_text("[{}, {}]")
    assert main(["report", str(tmp_path)]) == 0
    assert "2 runs on synthetic" in text_of(tmp_path / "report.html")
    # a job's folder holds an equals sign, and is no key
    assert main(["report", str(tmp_path / "1_trainer.seed=1")]) == 0
    assert (tmp_path / "1_trainer.seed=1" / "report.html").is_file()


def test_csv_has_a_row_for_each_run_that_other_programs_read(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", records_of(0.5), {}, lr=0.1),
        write_run(tmp_path / "b", records_of(0.25, math.nan), {}, lr=0.2),
    ]
    text = write_report(runs, tmp_path / "runs.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["run"], row["trainer.lr"]) for row in rows] == [("a", "0.1"), ("b", "0.2")]
    assert float(rows[0]["val/accuracy"]) == 0.5
    assert rows[1]["best_epoch"] == "1"


def test_the_figures_are_files_too(trained: Path, tmp_path: Path) -> None:
    assert main(["report", str(trained), "--figures", str(tmp_path / "figures")]) == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"accuracy.png", "loss.png", "memory.png", "nodes-as-the-model-sees-them.png"} <= names
    image = Image.open(tmp_path / "figures" / "loss.png")
    assert image.size == (1500, 833)
    assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "pdf"], "cannot be written as 'pdf'"),
        (["--out", "page.txt"], "cannot be written as 'txt'"),
        (["--out", "nowhere/page.html"], "its directory does not exist"),
        (["--out", ".", "--format", "csv"], "it is a directory"),
        (["--out", "-", "--format", "csv"], "--out=-"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    run = write_run(tmp_path / "run", records_of(0.5), {})
    assert main(["report", str(run), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", records_of(0.5), {})
    (tmp_path / "victim").write_text("mine")
    (run / "report.csv").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="it is a link"):
        write_report([run], wanted="csv")
    assert (tmp_path / "victim").read_text() == "mine"
