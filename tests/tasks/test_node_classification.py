from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor
from torch.nn import functional as F

from gnntrain.data.graph import NODE, Graph, Nodes
from gnntrain.tasks import NodeClassification
from tests.evaluators import metrics_of
from tests.graphs import random_graph, stored

RNG = np.random.default_rng(0)


def task_of(
    kind: str, metric: str = "accuracy", ogb_name: str | None = None, **options: Any
) -> NodeClassification:
    """A task over a graph of which only the labels' kind matters."""
    graph: Any = SimpleNamespace(
        task=kind, metric=metric, ogb_name=ogb_name, num_classes=3, class_names=None
    )
    return NodeClassification(graph, **options)


def logits_and_labels(size: int) -> tuple[Tensor, Tensor]:
    """Of two classes. Many logits are equal, some 0."""
    rng = np.random.default_rng(size)
    logits = torch.from_numpy(rng.integers(-8, 9, size=(size, 1)) / 4).float()
    return logits, torch.from_numpy((rng.random(size) < 0.3).astype(np.int32))


def test_multiclass_metrics_are_scikit_learns() -> None:
    logits, labels = RNG.normal(size=(200, 4)).astype(np.float32), RNG.integers(0, 4, 200)
    tensors, predicted = (torch.from_numpy(logits), torch.from_numpy(labels)), logits.argmax(1)
    found = metrics_of(task_of("multiclass"), *tensors)
    assert next(iter(found)) == "accuracy"
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, predicted))
    assert found["f1_macro"] == pytest.approx(sk.f1_score(labels, predicted, average="macro"))
    assert "f1_micro" not in found
    micro = metrics_of(task_of("multiclass", "f1_micro"), *tensors)["f1_micro"]
    assert micro == pytest.approx(sk.f1_score(labels, predicted, average="micro"))


def test_multilabel_metrics_are_scikit_learns() -> None:
    logits = RNG.normal(size=(150, 5)).astype(np.float32)
    labels = RNG.integers(0, 2, (150, 5)).astype(np.uint8)
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    found = metrics_of(task_of("multilabel", "roc_auc"), *tensors)
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(labels, logits), abs=1e-5)
    for average in ("micro", "macro"):
        expected = sk.f1_score(labels, logits > 0, average=average)
        assert found[f"f1_{average}"] == pytest.approx(expected, abs=1e-6)
    assert "roc_auc" not in metrics_of(task_of("multilabel", "f1_micro"), *tensors)


@pytest.mark.parametrize("positive", [0, 1])
def test_metrics_of_the_positive_class_are_scikit_learns(positive: int) -> None:
    logits, labels = logits_and_labels(300)
    found = metrics_of(task_of("binary", positive=positive), logits, labels)
    predicted = (logits[:, 0] > 0).int()  # as `predict` writes them
    scores = logits[:, 0] if positive else -logits[:, 0]
    expected = {
        "base_rate": float((labels == positive).double().mean()),
        "average_precision": sk.average_precision_score(labels == positive, scores),
        "roc_auc": sk.roc_auc_score(labels, logits[:, 0]),
        "accuracy": sk.accuracy_score(labels, predicted),
        "f1_macro": sk.f1_score(labels, predicted, average="macro"),
        "precision": sk.precision_score(labels, predicted, pos_label=positive),
        "recall": sk.recall_score(labels, predicted, pos_label=positive),
        "f1": sk.f1_score(labels, predicted, pos_label=positive),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("k", "positive"), [(1, 0), (30, 1), (1000, 0)])
def test_of_equal_scores_at_the_kth_place_each_is_as_likely_to_count(k: int, positive: int) -> None:
    logits, labels = logits_and_labels(40)
    task = task_of("binary", positive=positive, top_k=k)
    found = metrics_of(task, logits, labels)
    is_positive, right, rng = (labels == positive).numpy(), [], np.random.default_rng(0)
    for _ in range(4000):  # in any order of the nodes
        order = rng.permutation(40)
        best = order[np.argsort((-logits if positive else logits)[order, 0], kind="stable")][:k]
        right.append(is_positive[best].sum())
    assert found[f"precision@{k}"] == pytest.approx(np.mean(right) / min(k, 40), abs=0.02)
    assert found[f"recall@{k}"] == pytest.approx(np.mean(right) / is_positive.sum(), abs=0.02)
    turned = torch.arange(40).flip(0)
    assert metrics_of(task, logits[turned], labels[turned]) == found


@pytest.mark.parametrize("kind", ["binary", "multilabel"])
@pytest.mark.parametrize("ends", [(0.1, 0.9), (18, 60)], ids=["as-probabilities", "large"])
def test_logits_are_ranked_as_they_are(kind: str, ends: tuple[float, float]) -> None:
    """Also where they look like probabilities, and where all probabilities are 1."""
    logits, labels = torch.linspace(*ends, 300)[:, None], torch.arange(300)[:, None] % 7 == 0
    targets = labels.long() if kind == "multilabel" else labels[:, 0].int()
    found = metrics_of(task_of(kind, "roc_auc"), logits, targets)
    assert next(iter(found)) == "roc_auc"
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(labels, logits))
    expected = sk.average_precision_score(labels, logits)
    assert found["average_precision"] == pytest.approx(expected)
    if kind == "binary":  # every logit is positive: every node is predicted 1
        assert found["accuracy"] == pytest.approx(labels.double().mean())


def test_what_cannot_be_judged_is_left_out_or_not_a_number() -> None:
    logits = torch.tensor([[3.0, 0.0], [-1.0, 1.0], [2.0, 2.0]])
    labels = torch.tensor([[1, 0], [0, 0], [1, 0]], dtype=torch.uint8)  # none has the second
    ranking = task_of("multilabel", "roc_auc")
    found = metrics_of(ranking, logits, labels)
    assert found["roc_auc"] == found["average_precision"] == 1.0
    assert math.isnan(metrics_of(ranking, logits, torch.zeros_like(labels))["roc_auc"])
    ones = metrics_of(task_of("binary", "roc_auc"), logits[:, :1], torch.ones(3, dtype=torch.int32))
    assert math.isnan(ones["roc_auc"])
    assert ones["accuracy"] == pytest.approx(2 / 3)
    task, some = task_of("multiclass"), torch.tensor([0, -1, 1])
    assert metrics_of(task, logits, some)["accuracy"] == 0.5
    assert metrics_of(task, logits[:0], some[:0]) == {}
    assert metrics_of(task, logits, torch.full((3,), -1)) == {}


@pytest.mark.parametrize(
    ("name", "task", "metric", "shape"),
    [
        ("ogbn-arxiv", "multiclass", "accuracy", (50, 40)),
        ("ogbn-proteins", "multilabel", "roc_auc", (50, 112)),
    ],
)
def test_ogb_data_sets_are_judged_by_ogbs_own_evaluator(
    name: str, task: str, metric: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ogb.nodeproppred import Evaluator

    asked = []
    original = Evaluator.eval

    def eval_and_note(self: Any, values: dict[str, Any]) -> dict[str, float]:
        asked.append(self.name)
        answer: dict[str, float] = original(self, values)
        return answer

    monkeypatch.setattr(Evaluator, "eval", eval_and_note)
    logits = torch.from_numpy(RNG.normal(size=shape).astype(np.float32))
    size = shape[0] if task == "multiclass" else shape
    labels = torch.from_numpy(RNG.integers(0, 2, size))
    with_ogb = metrics_of(task_of(task, metric, name), logits, labels)
    assert asked == [name]
    without = metrics_of(task_of(task, metric), logits, labels)
    assert with_ogb[metric] == pytest.approx(without[metric], abs=1e-5)


LOG_2, ODDS_1, ODDS_2 = math.log(2), math.log(1 + math.exp(1)), math.log(1 + math.exp(-2))


@pytest.mark.parametrize(
    ("kind", "logits", "labels", "expected"),
    [
        ("multiclass", [[2.0, 0.0], [0.0, 1.0]], [0, 0], ODDS_2 + ODDS_1),
        ("binary", [[2.0], [-1.0]], [1, 1], ODDS_2 + ODDS_1),
        ("multilabel", [[2.0, 0.0], [-1.0, 0.0]], [[1, 1], [1, 0]], (ODDS_2 + ODDS_1) / 2 + LOG_2),
    ],
)
def test_the_loss_is_a_sum_over_nodes_in_float32(
    kind: str, logits: Any, labels: Any, expected: float
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        loss = task_of(kind).loss(torch.tensor(logits, dtype=dtype), torch.tensor(labels))
        assert loss.dtype == torch.float32
        assert float(loss) == pytest.approx(expected)


def weighted_task(labels: Any, kind: str, label_smoothing: float = 0.0) -> NodeClassification:
    """A task with balanced classes of which all nodes are training nodes."""
    nodes = Nodes(
        np.empty((len(labels), 0)), labels=labels, splits={"train": np.arange(len(labels))}
    )
    num_classes = labels.shape[1] if kind == "multilabel" else 4 if kind == "multiclass" else 2
    task: Any = kind
    graph = Graph({NODE: nodes}, {}, task=task, num_classes=num_classes)
    return NodeClassification(graph, label_smoothing=label_smoothing, balanced=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["multiclass", "binary"])
def test_balanced_and_smoothed_classes_are_torchs_with_scikit_learns_weights(
    kind: str, smoothing: float
) -> None:
    """One logit of two classes is as two of which the first is 0."""
    labels = np.array([0] * 30 + [1] * 9 + ([3] if kind == "multiclass" else [1]))  # none of 2
    present, width = np.unique(labels), 4 if kind == "multiclass" else 1
    logits = torch.from_numpy(RNG.normal(size=(40, width)).astype(np.float32))
    weight = torch.zeros(max(width, 2))
    balanced = compute_class_weight("balanced", classes=present, y=labels)
    weight[present] = torch.from_numpy(balanced).float()
    both = logits if width > 1 else torch.cat([torch.zeros_like(logits), logits], dim=1)
    targets = torch.from_numpy(labels)
    expected = F.cross_entropy(both, targets, weight, label_smoothing=smoothing)
    task = weighted_task(labels, kind, smoothing)
    torch.testing.assert_close(task.loss(logits, targets) / 40, expected)
    if width > 1 and smoothing == 0:  # a class that training has not counts for nothing
        assert float(task.loss(torch.randn(1, 4), torch.tensor([2]))) == 0


def test_each_of_several_balanced_labels_is_a_choice_between_two() -> None:
    labels = (RNG.uniform(size=(50, 4)) < [0.1, 0.5, 0.9, 0]).astype(np.uint8)
    logits = torch.from_numpy(RNG.normal(size=(50, 4)).astype(np.float32))
    targets = torch.from_numpy(labels)
    alone = [
        weighted_task(labels[:, i], "binary").loss(logits[:, i : i + 1], targets[:, i])
        for i in range(3)
    ]
    # Where all training nodes agree nothing is weighted.
    last = F.binary_cross_entropy_with_logits(logits[:, 3], targets[:, 3].float(), reduction="sum")
    together = weighted_task(labels, "multilabel").loss(logits, targets)
    torch.testing.assert_close(together, torch.stack([*alone, last]).mean())


FLAGS = [[1, 0]] * 6
TWO = [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("labels", "changes", "words"),
    [
        ([0, 1, 2] * 4, {}, []),
        (
            [*TWO, *(2, 2, 0), *(2, 3, 1)],
            {},
            [["2 of 4 classes", "class 2 (2 val and 1 test nodes), class 3 (0 val and 1 test"]],
        ),
        (
            [*[0, 1] * 5, 1, 2],
            {"class_names": np.array([b"cat", b"dog", b"eel"])},
            [["class eel (0 val and 1 test nodes)"]],
        ),
        (
            [*FLAGS, [1, 1], [0, 0], [0, 1], *[[0, 0]] * 3],
            {"task": "multilabel", "metric": "f1_micro"},
            [["1 of 2 labels", "label 1 (2 val and 0 test nodes)"]],
        ),
        ([*[0, 1] * 5, -1, 2], {"splits": {"val": [6, 7], "test": [8, 9]}}, []),
        (
            [*TWO, *(0, 0, 0), *(1, 1, 1)],
            {"task": "binary", "metric": "roc_auc"},
            [["roc_auc is not defined on val", "last epoch"], ["roc_auc is not defined on test"]],
        ),
        ([*TWO, *(0, 0, 0), *(1, 1, 1)], {"task": "binary", "metric": "accuracy"}, []),
        (
            [*TWO, *(0, 0, 0), *(1, 1, 1)],
            {"task": "binary", "metric": "f1"},
            [["f1 is 0 on val", "first epoch"]],
        ),
        (
            [*FLAGS[:5], [0, 1], [1, 1], [1, 0], [1, 0], [1, 0], [0, 1], [1, 1]],
            {"task": "multilabel", "metric": "roc_auc"},  # one label that can be ranked is enough
            [],
        ),
    ],
)
def test_what_training_cannot_learn_or_judge_is_told(
    tmp_path: Path, labels: Any, changes: dict[str, Any], words: list[list[str]]
) -> None:
    values = np.array(labels)
    nodes = {"train": range(6), "val": range(6, 9), "test": range(9, 12)}
    splits = {k: np.array(v) for k, v in (nodes | changes.get("splits", {})).items()}
    num_classes = values.shape[1] if values.ndim == 2 else int(values.max()) + 1
    data = random_graph(
        12, 30, labels=values, num_classes=num_classes, **(changes | {"splits": splits})
    )
    warnings = NodeClassification(stored(tmp_path / "store", data)).warnings()
    assert len(warnings) == len(words)
    for warning, parts in zip(warnings, words, strict=True):
        assert all(part in warning for part in parts)
