from __future__ import annotations

import math
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
from tests.tasks.oracles import metrics_of

RNG = np.random.default_rng(0)


def task_of(
    kind: str, metric: str = "accuracy", ogb_name: str | None = None, **options: Any
) -> NodeClassification:
    """A task over a graph of which only the labels' kind matters."""
    graph: Any = SimpleNamespace(
        task=kind, metric=metric, ogb_name=ogb_name, num_classes=3, class_names=None
    )
    return NodeClassification(graph, **options)


def compute_metrics(
    logits: Tensor, labels: Tensor, kind: str, metric: str, ogb_name: str | None = None
) -> dict[str, float]:
    return metrics_of(task_of(kind, metric, ogb_name), logits, labels)


def test_multiclass_metrics_are_scikit_learns() -> None:
    logits = RNG.normal(size=(200, 4)).astype(np.float32)
    labels = RNG.integers(0, 4, 200)
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    found = compute_metrics(*tensors, "multiclass", "accuracy")
    predicted = logits.argmax(1)
    assert next(iter(found)) == "accuracy"
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, predicted))
    assert "f1_micro" not in found
    assert found["f1_macro"] == pytest.approx(sk.f1_score(labels, predicted, average="macro"))


def test_micro_f1_of_single_labels_is_the_accuracy() -> None:
    logits, labels = torch.randn(50, 3), torch.randint(0, 3, (50,))
    found = compute_metrics(logits, labels, "multiclass", "f1_micro")
    expected = sk.f1_score(labels, logits.argmax(1), average="micro")
    assert found["f1_micro"] == pytest.approx(expected)


def test_binary_metrics_are_scikit_learns_also_where_all_logits_look_like_probabilities() -> None:
    logits = RNG.uniform(0.1, 0.9, size=(300, 1)).astype(np.float32)
    labels = (RNG.uniform(size=300) < 0.3).astype(np.int32)
    found = compute_metrics(torch.from_numpy(logits), torch.from_numpy(labels), "binary", "roc_auc")
    assert next(iter(found)) == "roc_auc"
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(labels, logits[:, 0]), abs=1e-6)
    precision = sk.average_precision_score(labels, logits[:, 0])
    assert found["average_precision"] == pytest.approx(precision, abs=1e-6)
    # every logit is positive: every node is predicted 1
    assert found["accuracy"] == pytest.approx(labels.mean())


def logits_and_labels(size: int) -> tuple[Tensor, Tensor]:
    """Of two classes. Many logits are equal, some 0."""
    rng = np.random.default_rng(size)
    logits = torch.from_numpy(rng.integers(-8, 9, size=(size, 1)) / 4).float()
    return logits, torch.from_numpy((rng.random(size) < 0.3).astype(np.int32))


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


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("k", [1, 7, 30, 40, 1000])
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
def test_large_logits_are_ranked_though_their_probabilities_are_all_1(kind: str) -> None:
    logits = torch.linspace(18, 60, 300)[:, None]
    labels = torch.arange(300)[:, None] % 7 == 0
    assert (logits.sigmoid() == 1).all()
    targets = labels.long() if kind == "multilabel" else labels[:, 0].int()
    found = compute_metrics(logits, targets, kind, "roc_auc")
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(labels, logits))
    expected = sk.average_precision_score(labels, logits)
    assert found["average_precision"] == pytest.approx(expected)


def test_multilabel_metrics_are_scikit_learns() -> None:
    logits = RNG.normal(size=(150, 5)).astype(np.float32)
    labels = RNG.integers(0, 2, (150, 5)).astype(np.uint8)
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    found = compute_metrics(*tensors, "multilabel", "roc_auc")
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(labels, logits), abs=1e-5)
    for average in ("micro", "macro"):
        expected = sk.f1_score(labels, logits > 0, average=average)
        assert found[f"f1_{average}"] == pytest.approx(expected, abs=1e-6)
    assert "roc_auc" not in compute_metrics(*tensors, "multilabel", "f1_micro")


def test_a_label_that_no_node_has_is_left_out_of_the_ranking_metrics() -> None:
    logits = torch.tensor([[3.0, 0.0], [-1.0, 1.0], [2.0, 2.0]])
    labels = torch.tensor([[1, 0], [0, 0], [1, 0]], dtype=torch.uint8)
    found = compute_metrics(logits, labels, "multilabel", "roc_auc")
    assert found["roc_auc"] == found["average_precision"] == 1.0
    nothing = compute_metrics(logits, torch.zeros_like(labels), "multilabel", "roc_auc")
    assert math.isnan(nothing["roc_auc"])


def test_unlabelled_nodes_are_left_out_and_an_empty_split_has_no_metrics() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([0, -1, 0])
    assert compute_metrics(logits, labels, "multiclass", "accuracy")["accuracy"] == 0.5
    assert compute_metrics(logits[:0], labels[:0], "multiclass", "accuracy") == {}
    assert compute_metrics(logits, torch.full((3,), -1), "multiclass", "accuracy") == {}


def test_roc_auc_of_a_single_class_is_nan() -> None:
    ones = torch.ones(5, dtype=torch.int32)
    found = compute_metrics(torch.randn(5, 1), ones, "binary", "roc_auc")
    assert math.isnan(found["roc_auc"])
    assert found["accuracy"] >= 0


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
    with_ogb = compute_metrics(logits, labels, task, metric, ogb_name=name)
    without = compute_metrics(logits, labels, task, metric)
    assert asked == [name]
    assert with_ogb[metric] == pytest.approx(without[metric], abs=1e-5)


def test_multiclass_is_the_summed_cross_entropy() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0], dtype=torch.int32)
    expected = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))
    assert float(task_of("multiclass").loss(logits, labels)) == pytest.approx(expected)


def test_binary_is_the_summed_logistic_loss_of_one_logit() -> None:
    logits = torch.tensor([[2.0], [-1.0]])
    labels = torch.tensor([1, 1], dtype=torch.int32)
    expected = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))
    assert float(task_of("binary").loss(logits, labels)) == pytest.approx(expected)


def test_multilabel_is_the_mean_over_classes_summed_over_nodes() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3)
    labels = torch.randint(0, 2, (4, 3), dtype=torch.uint8)
    expected = 4 * F.binary_cross_entropy_with_logits(logits, labels.float())
    torch.testing.assert_close(task_of("multilabel").loss(logits, labels), expected)


def test_label_smoothing_mixes_the_target_with_the_uniform_distribution() -> None:
    logits = torch.tensor([[3.0]])
    smooth = task_of("binary", label_smoothing=0.2).loss(logits, torch.tensor([1]))
    plain = task_of("binary").loss
    mixed = 0.9 * plain(logits, torch.tensor([1])) + 0.1 * plain(logits, torch.tensor([0]))
    torch.testing.assert_close(smooth, mixed)


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(3, 2, dtype=torch.bfloat16)
    loss = task_of("multiclass").loss(logits, torch.tensor([0, 1, 0]))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(3 * math.log(2))


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
def test_balanced_classes_are_torchs_weighted_mean_with_scikit_learns_weights(
    smoothing: float,
) -> None:
    labels = np.array([0] * 30 + [1] * 9 + [3] * 1)  # no node of class 2
    logits = torch.from_numpy(RNG.normal(size=(40, 4)).astype(np.float32))
    present = [0, 1, 3]
    weight = torch.zeros(4)
    weight[present] = torch.from_numpy(
        compute_class_weight("balanced", classes=np.array(present), y=labels)
    ).float()
    targets = torch.from_numpy(labels)
    expected = F.cross_entropy(logits, targets, weight, label_smoothing=smoothing)
    found = weighted_task(labels, "multiclass", smoothing).loss(logits, targets) / 40
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_two_balanced_classes_of_one_logit_are_those_of_two(smoothing: float) -> None:
    labels = np.array([0] * 17 + [1] * 3)
    logit = torch.from_numpy(RNG.normal(size=(20, 1)).astype(np.float32))
    weight = torch.from_numpy(compute_class_weight("balanced", classes=np.array([0, 1]), y=labels))
    both = torch.cat([torch.zeros_like(logit), logit], dim=1)
    targets = torch.from_numpy(labels)
    expected = F.cross_entropy(both, targets, weight.float(), label_smoothing=smoothing)
    found = weighted_task(labels, "binary", smoothing).loss(logit, targets) / 20
    torch.testing.assert_close(found, expected)


def test_each_of_several_balanced_labels_is_a_choice_between_two() -> None:
    labels = (RNG.uniform(size=(50, 3)) < [0.1, 0.5, 0.9]).astype(np.uint8)
    logits = torch.from_numpy(RNG.normal(size=(50, 3)).astype(np.float32))
    targets = torch.from_numpy(labels)
    alone = [
        weighted_task(labels[:, i], "binary").loss(logits[:, i : i + 1], targets[:, i])
        for i in range(3)
    ]
    together = weighted_task(labels, "multilabel").loss(logits, targets)
    torch.testing.assert_close(together, torch.stack(alone).mean())


@pytest.mark.parametrize("flag", [0, 1])
def test_where_all_training_nodes_agree_nothing_is_weighted(flag: int) -> None:
    labels = np.full((6, 1), flag, np.uint8)
    logits, targets = torch.randn(6, 1), torch.from_numpy(labels)
    plain = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="sum")
    torch.testing.assert_close(weighted_task(labels, "multilabel").loss(logits, targets), plain)


def test_nodes_of_a_class_that_training_has_not_count_for_nothing() -> None:
    task = weighted_task(np.array([0, 0, 1]), "multiclass")
    assert float(task.loss(torch.randn(2, 4), torch.tensor([2, 3]))) == 0
