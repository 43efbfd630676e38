from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from gnntrain.config import TrainerConfig
from gnntrain.training.optimizer import build_optimizer, build_schedule


@pytest.mark.parametrize(
    ("keys", "rates"),
    [
        ({}, [1.0] * 4),
        ({"scheduler": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"scheduler": "cosine"}, [1.0, 0.853553, 0.5, 0.146447]),
        (
            {"scheduler": "step", "scheduler_step": 2, "scheduler_gamma": 0.1},
            [1.0] * 4 + [0.1] * 4,
        ),
        ({"scheduler": "linear", "warmup_epochs": 1}, [1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25]),
    ],
)
def test_schedules_by_step(keys: dict[str, Any], rates: list[float]) -> None:
    config = TrainerConfig(lr=1.0, **keys)
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], config)
    schedule = build_schedule(optimizer, config, steps_per_epoch=2, num_steps=len(rates))
    assert isinstance(schedule, LambdaLR)
    found = []
    for _ in rates:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert found == pytest.approx(rates, abs=1e-6)


def test_a_plateau_of_the_metric_cuts_the_rate() -> None:
    config = TrainerConfig(lr=1.0, scheduler="plateau", scheduler_step=1, scheduler_gamma=0.5)
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], config)
    schedule = build_schedule(optimizer, config, steps_per_epoch=1, num_steps=9)
    assert isinstance(schedule, ReduceLROnPlateau)
    found = []
    for metric in (0.1, 0.2, 0.2, 0.2, 0.3):
        schedule.step(metric)
        found.append(optimizer.param_groups[0]["lr"])
    assert found == [1.0, 1.0, 1.0, 0.5, 0.5]
