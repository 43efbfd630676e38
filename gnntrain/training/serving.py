"""Exact evaluation by the ranks that hold the graph, for those that train and hold nothing.

A trainer hands the weights to all servers, which compute the metrics together; meanwhile rank 0
asks for the outcome every few seconds, so that an evaluation may take longer than a call.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.run_control import Phase
from gnntrain.errors import Interrupted, RunError, signal_of
from gnntrain.loading.sharded import ROWS
from gnntrain.models import AnyModel
from gnntrain.phases import BACKGROUND
from gnntrain.sampling.remote import DRAW
from gnntrain.training.callbacks import Callback
from gnntrain.training.evaluation import Evaluator, SplitMetrics, why_estimated
from gnntrain.training.snapshot import EpochTotals

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange
    from gnntrain.distributed.messages import Array
    from gnntrain.training.trainer import Trainer

_EVALUATE, _OUTCOME, _SECONDS, _LEAVE = "evaluate", "outcome", "seconds", "leave"
_POLL_SECONDS = 2.0
_LOOK_SECONDS = 1.0


class ServedEvaluator:
    """Has the servers evaluate: the `Evaluator` of a rank that trains.

    As a context manager it tells the servers at the end that this rank asks nothing more; not after
    an error, which ends them otherwise.

    Args:
        exchange: Its owners are the servers.
        context: The ranks that train.
    """

    def __init__(self, exchange: Exchange, context: DistributedContext) -> None:
        self._exchange = exchange
        self._context = context
        self.estimated = ""

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """See `Evaluator.evaluate`."""
        if self._context.is_main:
            self._ask(_EVALUATE, packed_weights(model))
        outcome: dict[str, Any] | None = None
        while outcome is None:  # by turns, so that no rank waits long in one collective
            outcome = self._context.broadcast(self._poll() if self._context.is_main else None)
        if number := outcome["stop"]:
            raise Interrupted(number)
        self.estimated = outcome["estimated"]
        metrics: SplitMetrics = outcome["metrics"]
        return metrics

    def _poll(self) -> dict[str, Any] | None:
        with self._context.control.waiting():
            answers = self._ask(_OUTCOME)
        if not all(answers.values()):
            return None
        found: dict[str, Any] = _unpacked(answers[0][0])
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._ask(_LEAVE, np.array(0))
        elif isinstance(error, KeyboardInterrupt) and not self._context.control.is_abandoned:
            self._ask(_LEAVE, np.array(signal_of(error)))

    def _ask(self, name: str, *arguments: Array) -> dict[int, list[Array]]:
        return _ask_all(self._exchange, name, *arguments)


class ServerTimes(Callback):
    """Adds to an epoch's phases the seconds of its busiest server in draws and in rows.

    The servers fall behind if these are about as long as the epoch times the server's cores.

    Args:
        exchange: Its owners are the servers.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def after_steps(self, trainer: Trainer, totals: EpochTotals) -> None:
        """Ask the servers, on rank 0."""
        if trainer.context.is_main:
            answers = _ask_all(self._exchange, _SECONDS).values()
            servers: list[dict[str, float]] = [_unpacked(seconds) for [seconds] in answers]
            for name in (DRAW, ROWS):
                longest = max(map(partial(_seconds_in, name), servers))
                totals.add_times({f"{BACKGROUND}server_{name}": longest})


def _seconds_in(name: str, seconds: Mapping[str, float]) -> float:
    """Those of a call; rows of a node type are a call of their own, see `rows_call`."""
    return sum(time for call, time in seconds.items() if call.split("/")[0] == name)


def _ask_all(exchange: Exchange, name: str, *arguments: Array) -> dict[int, list[Array]]:
    return exchange.call(name, dict.fromkeys(range(exchange.num_owners), arguments))


def serve_evaluations(
    model: AnyModel,
    evaluator: Evaluator,
    exchange: Exchange,
    context: DistributedContext,
    num_trainers: int,
) -> None:
    """Evaluate for the ranks that train, until all of them have left.

    Args:
        model: Takes the weights that are sent.
        evaluator: Evaluates it, together with the other servers.
        exchange: Its owners are the servers. What else they serve, is answered meanwhile.
        context: The servers.
        num_trainers: How many ranks train.

    Raises:
        Interrupted: A signal ended training.
        RunError: Another rank failed.
    """
    _Serving(model, evaluator, exchange, context).run(num_trainers)


class _Serving:
    def __init__(
        self,
        model: AnyModel,
        evaluator: Evaluator,
        exchange: Exchange,
        context: DistributedContext,
    ) -> None:
        self._model = model
        self._evaluator = evaluator
        self._exchange = exchange
        self._context = context
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outcome: Array | None = None
        self._is_known = threading.Condition()
        self._num_left = 0
        self._stop = 0

    def run(self, num_trainers: int) -> None:
        """Do in this thread, which may use collectives, what calls ask for."""
        answers = {
            _EVALUATE: self._on_evaluate,
            _OUTCOME: self._on_outcome,
            _SECONDS: lambda _: [_packed(self._exchange.take_seconds())],
            _LEAVE: self._on_leave,
        }
        for name, answer in answers.items():
            self._exchange.serve(name, answer)
        self._context.control.enter(Phase.TRAINING, 0)
        while self._num_left < num_trainers:
            with self._context.control.waiting():
                task = self._next_task()
            task()
        self._context.control.enter(Phase.CLOSING, 0)
        if self._stop:
            raise Interrupted(self._stop)

    def _next_task(self) -> Callable[[], None]:
        while True:
            try:
                return self._tasks.get(timeout=_LOOK_SECONDS)
            except Empty:
                if self._context.control.first_failure() is not None:
                    raise RunError("Another rank failed.") from None

    def _on_evaluate(self, arguments: list[Array]) -> list[Array]:
        [weights] = arguments
        with self._is_known:
            self._outcome = None
        self._tasks.put(lambda: self._evaluate(weights))
        return []

    def _on_outcome(self, _: list[Array]) -> list[Array]:
        with self._is_known:
            self._is_known.wait_for(lambda: self._outcome is not None, _POLL_SECONDS)
            return [] if self._outcome is None else [self._outcome]

    def _on_leave(self, arguments: list[Array]) -> list[Array]:
        number = int(arguments[0])
        self._tasks.put(lambda: self._note_leave(number))
        return []

    def _note_leave(self, number: int) -> None:
        self._num_left += 1
        self._stop = self._stop or number

    def _evaluate(self, weights: Array) -> None:
        control = self._context.control
        unpack_weights(self._model, weights)
        outcome: dict[str, Any] = {"stop": 0}
        control.enter(Phase.EVALUATING, 0)
        try:
            outcome["metrics"] = self._evaluator.evaluate(self._model)
            outcome["estimated"] = why_estimated(self._evaluator)
        except Interrupted as error:
            if control.is_abandoned:
                raise
            outcome["stop"] = error.number  # the trainers save, then leave
        control.enter(Phase.TRAINING, 0)
        self._exchange.take_seconds()  # servers ask each other for rows, too
        with self._is_known:
            self._outcome = _packed(outcome)
            self._is_known.notify_all()


def _packed(value: Any) -> Array:
    """Plain data as bytes: uint8 `[n]`."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _unpacked(packed: Array) -> Any:
    return json.loads(packed.tobytes())


def packed_weights(model: torch.nn.Module) -> Array:
    """All weights and buffers as bytes: uint8 `[n]`."""
    tensors = [tensor.cpu().reshape(-1).view(torch.uint8) for tensor in _weights(model)]
    packed: Array = torch.cat(tensors).numpy()
    return packed


def unpack_weights(model: torch.nn.Module, packed: Array) -> None:
    """Set all weights and buffers to those of an equal model, see `packed_weights`."""
    given = torch.from_numpy(packed)
    for tensor in _weights(model):
        size = tensor.numel() * tensor.element_size()
        # `given` may start at any byte, which a tensor of larger numbers may not.
        values = given[:size].clone().view(tensor.dtype)
        tensor.copy_(values.view(tensor.shape))
        given = given[size:]


def _weights(model: torch.nn.Module) -> list[torch.Tensor]:
    state: dict[str, torch.Tensor] = model.state_dict()
    return list(state.values())
