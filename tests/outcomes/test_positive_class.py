"""The positive class of two, from a user's files to the records of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from gnntrain.cli import main
from tests.summaries import summary_of

KEYS = [
    *("dataset=files", "dataset.edges=edges.csv", "dataset.features=nodes.csv", "model=mlp"),
    *("trainer.epochs=3", "trainer.lr=0.1", "trainer.gpus=0", "run.dir=run"),
]


@pytest.fixture(autouse=True)
def _files(here: Path) -> None:  # noqa: ARG001
    """Accounts, one of eight a fraud."""
    write_nodes("fraud", "ok")
    edges = np.random.default_rng(1).integers(0, 400, (900, 2))
    pd.DataFrame(edges, columns=["source", "target"]).to_csv("edges.csv", index=False)


def write_nodes(rare: object, frequent: object) -> None:
    rng = np.random.default_rng(0)
    is_rare = np.arange(400) % 8 == 0
    values = rng.normal(size=(400, 3)) + 2 * is_rare[:, None]
    split = rng.permutation(np.repeat(["train", "val", "test"], [200, 50, 150]))
    table = pd.DataFrame(values, columns=["a", "b", "c"]).rename_axis("id")
    table = table.assign(label=np.where(is_rare, str(rare), str(frequent)), split=split)
    table.to_csv("nodes.csv")


def test_the_metrics_are_those_of_the_class_that_the_key_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*KEYS, "task.positive_class=fraud", "task.top_k=20"]) == 0
    printed = capsys.readouterr().out
    assert main(["predict", "run", "--out", "class.csv"]) == 0
    assert main(["predict", "run", "--out", "logits.csv", "--what", "logits"]) == 0
    true = pd.read_csv("nodes.csv", index_col="id")
    found = true.join([pd.read_csv(f"{w}.csv", index_col="node") for w in ("class", "logits")])
    summary = summary_of()
    assert summary["positive_class"] == "fraud"
    for split in ("train", "val", "test"):
        rows = found[found["split"] == split]
        is_fraud, score = rows["label"] == "fraud", -rows["logit"]
        top = is_fraud[score.sort_values(ascending=False).index[:20]]
        expected = {
            "average_precision": sk.average_precision_score(is_fraud, score),
            "base_rate": is_fraud.mean(),
            "precision": sk.precision_score(rows["label"], rows["class"], pos_label="fraud"),
            "recall": sk.recall_score(rows["label"], rows["class"], pos_label="fraud"),
            "f1": sk.f1_score(rows["label"], rows["class"], pos_label="fraud"),
            "precision@20": top.mean(),
            "recall@20": top.sum() / is_fraud.sum(),
        }
        assert {k: summary[split][k] for k in expected} == pytest.approx(expected, abs=1e-6)
        assert summary[split]["base_rate"] < 0.2 < summary[split]["precision"]
    assert "positive  fraud\n" in printed
    assert "base rate" in printed
    capsys.readouterr()
    assert main(["evaluate", "run"]) == 0
    assert "positive class fraud" in capsys.readouterr().out
    assert main(["report", "run"]) == 0
    assert "The positive class is fraud." in Path("run/report.html").read_text()
    assert main(["export", "run", "--out", "made"]) == 0
    card = Path("made/README.md").read_text()
    assert "Predicts fraud or ok for each node" in card
    assert "of the class fraud." in card
    # The epochs so far are those of another class.
    assert main(["resume", "run", "trainer.epochs=4", "task.positive_class=ok"]) == 2


@pytest.mark.parametrize(
    ("taken", "other", "is_plain"),
    [("ok", "fraud", False), ("5", "+5", False), ("1", "0", True), ("Yes", "No", True)],
)
def test_the_class_that_is_taken_is_told_and_where_it_is_not_plain_how_to_take_the_other(
    taken: str, other: str, is_plain: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_nodes(*((taken, other) if is_plain else (other, taken)))
    for keys, positive, run in (
        ([], taken, "first"),
        ([f"task.positive_class={other}"], other, "second"),
    ):
        assert main([*KEYS, *keys, f"run.dir={run}"]) == 0
        printed = capsys.readouterr().out
        assert f"positive  {positive}" in printed
        if not keys:
            assert ("task.positive_class=" in printed) != is_plain
            assert is_plain or f"task.positive_class={other}" in printed
    ours, theirs = (summary_of(r) for r in ("first", "second"))
    assert (str(ours["positive_class"]), str(theirs["positive_class"])) == (taken, other)
    assert (ours["test"]["base_rate"] < 0.2) == (theirs["test"]["base_rate"] > 0.8) == is_plain
    same = ("accuracy", "roc_auc", "f1_macro")
    assert [ours["test"][name] for name in same] == pytest.approx(
        [theirs["test"][name] for name in same], rel=1e-12
    )


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["task.positive_class=frad"], ["frad", "fraud", "ok"]),
        (["task.positive_class=3"], ["3", "fraud", "ok"]),
        (["task.positive_class=fraud", "dataset.task=multiclass"], ["fraud", "multiclass"]),
        (["task.positive_class=fraud", "task.type=node_regression"], ["fraud", "regression"]),
    ],
)
def test_a_class_that_is_not_there_is_refused_before_training(
    keys: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*KEYS, *keys]) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in names)
    assert not Path("run").exists()
