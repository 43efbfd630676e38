"""Exact evaluation by the ranks that hold the graph, for those that train and hold nothing.

A trainer hands the weights to all servers, which compute the metrics together; meanwhile rank 0
asks for the outcome every few seconds, so that an evaluation may take longer than a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.run_control import Phase
from gnntrain.errors import Interrupted, RunError, signal_of
from gnntrain.loading.shared import ROWS
from gnntrain.models import AnyModel
from gnntrain.phases import BACKGROUND
from gnntrain.sampling.remote import DRAW
from gnntrain.training.evaluation import Evaluator, SplitMetrics
from gnntrain.training.totals import EpochTotals
from gnntrain.training.trainer import Callback, Trainer

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange
    from gnntrain.distributed.owners import AnyArray

_EVALUATE, _OUTCOME, _SECONDS, _LEAVE = "evaluate", "outcome", "seconds", "leave"
_POLL_SECONDS = 2.0
_LOOK_SECONDS = 1.0


class ServedEvaluator(Evaluator):
    """Has the servers, the owners of `exchange`, evaluate for the ranks that train."""

    def __init__(self, exchange: Exchange, context: DistributedContext) -> None:
        self._exchange, self._context = exchange, context

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        context, outcome = self._context, None
        if context.is_main:
            _ask_all(self._exchange, _EVALUATE, *weights_of(model))
        while outcome is None:  # by turns, so that no rank waits long in one collective
            if context.is_main:
                with context.control.waiting():
                    answers = _ask_all(self._exchange, _OUTCOME)
                outcome = _unpacked(answers[0][0]) if all(answers) else None
            outcome = context.broadcast(outcome)
        if number := outcome["stop"]:
            raise Interrupted(number)
        self.estimated = outcome["estimated"]
        metrics: SplitMetrics = outcome["metrics"]
        return metrics


@contextmanager
def served_evaluator(exchange: Exchange, context: DistributedContext) -> Iterator[ServedEvaluator]:
    """The evaluator of a rank that trains. At the end it tells the servers that this rank asks
    nothing more; not after an error, which ends them otherwise."""
    try:
        yield ServedEvaluator(exchange, context)
    except KeyboardInterrupt as error:
        if not context.control.is_abandoned:
            _ask_all(exchange, _LEAVE, np.array(signal_of(error)))
        raise
    _ask_all(exchange, _LEAVE, np.array(0))


class ServerTimes(Callback):
    """Adds to an epoch's phases the seconds of its busiest server in draws and in rows.

    The servers fall behind if these are about as long as the epoch times the server's cores.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def after_steps(self, trainer: Trainer, totals: EpochTotals) -> None:
        """Ask the servers, on rank 0."""
        if not trainer.context.is_main:
            return
        servers = [_unpacked(seconds) for [seconds] in _ask_all(self._exchange, _SECONDS)]
        for name in (DRAW, ROWS):
            # Rows of a node type are a call of their own, see `rows_call`.
            seconds = [
                sum(time for call, time in calls.items() if call.split("/")[0] == name)
                for calls in servers
            ]
            totals.add_times({f"{BACKGROUND}server_{name}": max(seconds)})


def serve_evaluations(
    model: AnyModel,
    evaluator: Evaluator,
    exchange: Exchange,
    context: DistributedContext,
    num_trainers: int,
) -> None:
    """Evaluate for the ranks that train, until all of them have left.

    Calls are answered by other threads, also those of what else the servers serve; this one, which
    may use collectives, evaluates `model` with the weights that are sent, together with the other
    servers. Raises `Interrupted` if a signal ended training.
    """
    control, outcome = context.control, Future[dict[str, Any]]()
    received: SimpleQueue[tuple[str, list[AnyArray]]] = SimpleQueue()

    def on_evaluate(arguments: list[AnyArray]) -> list[AnyArray]:
        nonlocal outcome
        outcome = Future()
        received.put((_EVALUATE, arguments))
        return []

    def on_outcome(_: list[AnyArray]) -> list[AnyArray]:
        try:
            return [_packed(outcome.result(_POLL_SECONDS))]
        except TimeoutError:
            return []

    def on_leave(arguments: list[AnyArray]) -> list[AnyArray]:
        received.put((_LEAVE, arguments))
        return []

    answers = {_EVALUATE: on_evaluate, _OUTCOME: on_outcome, _LEAVE: on_leave}
    answers[_SECONDS] = lambda _: [_packed(exchange.take_seconds())]
    for name, answer in answers.items():
        exchange.serve(name, answer)
    control.enter(Phase.TRAINING, 0)
    num_left = stop = 0
    while num_left < num_trainers:
        with control.waiting():
            try:
                name, arguments = received.get(timeout=_LOOK_SECONDS)
            except Empty:
                if control.first_failure() is not None:
                    raise RunError("Another rank failed.") from None
                continue
        if name == _LEAVE:
            num_left += 1
            stop = stop or int(arguments[0])
            continue
        set_weights(model, arguments)
        found: dict[str, Any] = {"stop": 0}
        control.enter(Phase.EVALUATING, 0)
        try:
            found["metrics"] = evaluator.evaluate(model)
            found["estimated"] = evaluator.estimated
        except Interrupted as error:
            if control.is_abandoned:
                raise
            found["stop"] = error.number  # the trainers save, then leave
        control.enter(Phase.TRAINING, 0)
        exchange.take_seconds()  # servers ask each other for rows, too
        outcome.set_result(found)
    control.enter(Phase.CLOSING, 0)
    if stop:
        raise Interrupted(stop)


def _ask_all(exchange: Exchange, name: str, *arguments: AnyArray) -> Sequence[list[AnyArray]]:
    """The answers of all servers."""
    questions = dict.fromkeys(range(exchange.num_owners), arguments)
    return list(exchange.call(name, questions).values())


def _packed(value: Any) -> AnyArray:
    """Plain data as bytes: uint8 `[n]`."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _unpacked(packed: AnyArray) -> Any:
    return json.loads(packed.tobytes())


def weights_of(model: torch.nn.Module) -> list[AnyArray]:
    """All weights and buffers, the bytes of each: NumPy has no bfloat16."""
    state = model.state_dict().values()
    return [weight.cpu().reshape(-1).view(torch.uint8).numpy() for weight in state]


def set_weights(model: torch.nn.Module, arrays: Sequence[AnyArray]) -> None:
    """Set all weights and buffers to those of an equal model, see `weights_of`."""
    for weight, array in zip(model.state_dict().values(), arrays, strict=True):
        if len(array):  # no empty one can be viewed so
            weight.copy_(torch.from_numpy(array).view(weight.dtype).view(weight.shape))
