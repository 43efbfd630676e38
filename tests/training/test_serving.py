from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from unittest import mock

import pytest
import torch
from torch import nn

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.models import GNN, SAGE, AnyModel
from gnntrain.training import serving
from gnntrain.training.evaluation import Evaluator, SplitMetrics
from gnntrain.training.serving import (
    ServedEvaluator,
    packed_weights,
    serve_evaluations,
    served_evaluator,
    unpack_weights,
)
from tests.distributed.exchanges import exchanges

T = TypeVar("T")


class Odd(nn.Module):
    """Weights of several types, of sizes that are no multiples of eight bytes."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.full((3,), value))
        self.halves = nn.Parameter(torch.full((1, 3), value, dtype=torch.bfloat16).T)
        self.empty = nn.Parameter(torch.empty(0))
        self.norm = nn.BatchNorm1d(3)
        self.norm(torch.full((2, 3), value))
        self.register_buffer("wide", torch.tensor(value, dtype=torch.float64))


def test_weights_and_buffers_of_all_types_arrive() -> None:
    sent, received = Odd(1.5), Odd(-2.0)
    unpack_weights(received, packed_weights(sent))
    for name, tensor in sent.state_dict().items():
        assert torch.equal(tensor, received.state_dict()[name]), name


def model(value: float) -> GNN:
    made = SAGE(1, 1, hidden_channels=2, num_layers=1)
    nn.init.constant_(next(made.parameters()), value)
    return made


class Evaluating(Evaluator):
    """An evaluator that answers with a weight."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self._before = before

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        self._before()
        value = next(model.parameters()).flatten()[0].item()
        return {"val": {"value": value, "undefined": float("nan")}}


def with_server(
    train: Callable[[ServedEvaluator], T], before: Callable[[], object] = lambda: None
) -> T:
    """What one rank that trains returns, while another one serves."""
    with exchanges([0, 1], [[1]]) as [trainer, server], ThreadPoolExecutor(1) as pool:
        serving = pool.submit(
            serve_evaluations, model(0.0), Evaluating(before), server, DistributedContext(), 1
        )
        with served_evaluator(trainer, DistributedContext()) as evaluator:
            found = train(evaluator)
        serving.result(20)
    return found


def test_servers_evaluate_the_weights_that_are_sent_also_for_longer_than_a_call() -> None:
    def train(evaluator: ServedEvaluator) -> list[SplitMetrics]:
        return [evaluator.evaluate(model(value)) for value in (1.0, 2.0)]

    with mock.patch.object(serving, "_POLL_SECONDS", 0.02):
        found = with_server(train, lambda: time.sleep(0.1))
    assert [one["val"]["value"] for one in found] == [1.0, 2.0]
    assert str(found[0]["val"]["undefined"]) == "nan"


def test_a_stop_during_evaluation_reaches_the_trainers_and_the_servers_go_on() -> None:
    signals = iter([15, 0])

    def stop() -> None:
        if number := next(signals):
            raise Interrupted(number)

    def train(evaluator: ServedEvaluator) -> SplitMetrics:
        with pytest.raises(Interrupted) as caught:
            evaluator.evaluate(model(1.0))
        assert caught.value.number == 15
        return evaluator.evaluate(model(2.0))

    assert with_server(train, stop)["val"]["value"] == 2.0
