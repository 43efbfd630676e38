from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from gnntrain.training.losses import build_loss


def test_multiclass_is_the_summed_cross_entropy() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0], dtype=torch.int32)
    expected = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))
    assert float(build_loss("multiclass")(logits, labels)) == pytest.approx(expected)


def test_binary_is_the_summed_logistic_loss_of_one_logit() -> None:
    logits = torch.tensor([[2.0], [-1.0]])
    labels = torch.tensor([1, 1], dtype=torch.int32)
    expected = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))
    assert float(build_loss("binary")(logits, labels)) == pytest.approx(expected)


def test_multilabel_is_the_mean_over_classes_summed_over_nodes() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3)
    labels = torch.randint(0, 2, (4, 3), dtype=torch.uint8)
    expected = 4 * F.binary_cross_entropy_with_logits(logits, labels.float())
    torch.testing.assert_close(build_loss("multilabel")(logits, labels), expected)


def test_label_smoothing_mixes_the_target_with_the_uniform_distribution() -> None:
    logits = torch.tensor([[3.0]])
    smooth = build_loss("binary", 0.2)(logits, torch.tensor([1]))
    plain = build_loss("binary")
    mixed = 0.9 * plain(logits, torch.tensor([1])) + 0.1 * plain(logits, torch.tensor([0]))
    torch.testing.assert_close(smooth, mixed)


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(3, 2, dtype=torch.bfloat16)
    loss = build_loss("multiclass")(logits, torch.tensor([0, 1, 0]))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(3 * math.log(2))
