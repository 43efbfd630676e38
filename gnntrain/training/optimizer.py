"""Optimisers and learning-rate schedules by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from torch import nn, optim
from torch.optim import lr_scheduler

from gnntrain.config import TrainerConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: TrainerConfig) -> optim.Optimizer:
    """The optimiser `trainer.optimizer` names, over `parameters`."""
    lr, weight_decay = config.lr, config.weight_decay
    if config.optimizer == "sgd":
        return optim.SGD(parameters, lr, config.momentum, weight_decay=weight_decay)
    kind = optim.AdamW if config.optimizer == "adamw" else optim.Adam
    return kind(parameters, lr, weight_decay=weight_decay)


def eager_state(state: dict[str, Any]) -> dict[str, Any]:
    """An optimiser's saved state without a CUDA graph's settings, which need a GPU."""
    plain = {"capturable": False, "fused": None}
    groups = [
        group | {key: value for key, value in plain.items() if key in group}
        for group in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


class Schedule(Protocol):
    """A learning-rate schedule, called after every step and every evaluation."""

    def after_step(self) -> None: ...

    def after_evaluation(self, metric: float) -> None: ...

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state: dict[str, object]) -> None: ...


class _ByStep(lr_scheduler.LambdaLR):
    """A factor that is a function of the step alone."""

    def after_step(self) -> None:
        self.step()

    def after_evaluation(self, metric: float) -> None:
        """A schedule by step ignores metrics."""


class _ByMetric(lr_scheduler.ReduceLROnPlateau):
    """A factor applied whenever the validation metric has stalled."""

    def after_step(self) -> None:
        """A schedule by metric ignores steps."""

    def after_evaluation(self, metric: float) -> None:
        self.step(metric)


def build_schedule(
    optimizer: optim.Optimizer,
    config: TrainerConfig,
    *,
    steps_per_epoch: int,
    num_steps: int,
    higher_is_better: bool = True,
) -> Schedule:
    """The schedule `trainer.scheduler` names.

    Args:
        steps_per_epoch: Steps in an epoch; `warmup_epochs` and `scheduler_step` count epochs.
        num_steps: Steps of the whole run, over which `cosine` and `linear` fall to zero.
        higher_is_better: Direction of the validation metric, which `plateau` follows.
    """
    if config.scheduler == "plateau":
        return _ByMetric(
            optimizer,
            mode="max" if higher_is_better else "min",
            factor=config.scheduler_gamma,
            patience=config.scheduler_step,
        )
    warmup = round(config.warmup_epochs * steps_per_epoch)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = min(1.0, (step - warmup) / max(1, num_steps - warmup))
        if config.scheduler == "cosine":
            return (1 + math.cos(math.pi * progress)) / 2
        if config.scheduler == "linear":
            return 1 - progress
        if config.scheduler == "step":
            epochs = (step - warmup) // steps_per_epoch
            return float(config.scheduler_gamma ** (epochs // config.scheduler_step))
        return 1.0

    return _ByStep(optimizer, factor)
