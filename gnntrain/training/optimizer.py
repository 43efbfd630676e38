"""Optimisers and learning-rate schedules by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from gnntrain.config import TrainerConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: TrainerConfig) -> optim.Optimizer:
    """The optimiser `trainer.optimizer` names, over `parameters`; Adam in one kernel on a GPU.

    Not SGD: if the gradient scaler skips the first step, torch's kernel leaves the momentum
    uninitialised.
    """
    parameters = [*parameters]
    options: dict[str, Any] = {"weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        return optim.SGD(parameters, config.lr, config.momentum, **options)
    can_fuse = all(one.is_cuda and one.is_floating_point() for one in parameters)
    kind = optim.AdamW if config.optimizer == "adamw" else optim.Adam
    return kind(parameters, config.lr, fused=can_fuse or None, **options)


def build_schedule(
    optimizer: optim.Optimizer,
    config: TrainerConfig,
    *,
    steps_per_epoch: int,
    num_steps: int,
    higher_is_better: bool = True,
) -> LambdaLR | ReduceLROnPlateau:
    """The schedule `trainer.scheduler` names: stepped after each step, or by each validation metric
    (`plateau`).

    Args:
        steps_per_epoch: Steps in an epoch; `warmup_epochs` and `scheduler_step` count epochs.
        num_steps: Steps of the whole run, over which `cosine` and `linear` fall to zero.
        higher_is_better: Direction of the validation metric.
    """
    if config.scheduler == "plateau":
        return ReduceLROnPlateau(
            optimizer,
            mode="max" if higher_is_better else "min",
            factor=config.scheduler_gamma,
            patience=config.scheduler_step - 1,  # torch lets so many pass
            # Better is what makes an epoch the best; torch's own threshold is a share of the best.
            threshold=0,
            threshold_mode="abs",
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

    return LambdaLR(optimizer, factor)
