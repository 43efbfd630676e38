from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.models import GNN, SAGE, AnyModel
from gnntrain.training import serving
from gnntrain.training.evaluation import Evaluator, SplitMetrics
from tests.distributed.exchanges import exchanges


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
    serving.set_weights(received, serving.weights_of(sent))
    for name, tensor in sent.state_dict().items():
        assert torch.equal(tensor, received.state_dict()[name]), name


def model(value: float) -> GNN:
    made = SAGE(1, 1, hidden_channels=2, num_layers=1)
    nn.init.constant_(next(made.parameters()), value)
    return made


class Evaluating(Evaluator):
    """An evaluator that answers with a weight."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        self._before()
        value = next(model.parameters()).flatten()[0].item()
        return {"val": {"value": value, "undefined": float("nan")}}


def test_servers_evaluate_the_weights_that_are_sent_also_for_longer_than_a_call_and_pass_a_stop_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_POLL_SECONDS", 0.02)
    signals, context = iter([0, 15, 0]), DistributedContext()

    def before() -> None:
        time.sleep(0.1)
        if number := next(signals):
            raise Interrupted(number)

    with exchanges([0, 1], [[1]]) as [trainer, server], ThreadPoolExecutor(1) as pool:
        evaluating = Evaluating(before)
        served = pool.submit(serving.serve_evaluations, model(0.0), evaluating, server, context, 1)
        with serving.served_evaluator(trainer, context) as evaluator:
            first = evaluator.evaluate(model(1.0))["val"]
            with pytest.raises(Interrupted) as caught:
                evaluator.evaluate(model(1.5))
            last = evaluator.evaluate(model(2.0))["val"]
        served.result(20)
    assert (first["value"], caught.value.number, last["value"]) == (1.0, 15, 2.0)
    assert str(first["undefined"]) == "nan"
