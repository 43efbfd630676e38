from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gnntrain.config import TrainerConfig
from gnntrain.training.optimizer import build_optimizer, build_schedule, eager_state


@pytest.mark.parametrize(
    ("name", "recorded"), [("adam", "capturable"), ("adamw", "capturable"), ("sgd", "fused")]
)
def test_what_a_recorded_step_has_set_binds_no_later_run(name: str, recorded: str) -> None:
    config = TrainerConfig(optimizer=name)  # type: ignore[arg-type]
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    begun, resumed = (build_optimizer([weight], config) for _ in range(2))
    usual = begun.param_groups[0][recorded]
    begun.step()
    begun.param_groups[0][recorded] = True
    saved = begun.state_dict()
    resumed.load_state_dict(eager_state(saved))
    assert resumed.param_groups[0][recorded] == usual
    assert saved["param_groups"][0][recorded] is True
    resumed.step()  # Adam's would refuse a state that is said to be a GPU's


def rates(num_steps: int, steps_per_epoch: int = 2, **keys: Any) -> list[float]:
    config = TrainerConfig(lr=1.0, **keys)
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], config)
    schedule = build_schedule(
        optimizer, config, steps_per_epoch=steps_per_epoch, num_steps=num_steps
    )
    found = []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.after_step()
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)],
)
def test_optimisers_by_name_take_rate_and_decay(name: str, kind: type) -> None:
    config = TrainerConfig(optimizer=name, lr=0.5, weight_decay=0.25)  # type: ignore[arg-type]
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], config)
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["weight_decay"] == 0.25
    if name == "sgd":
        assert optimizer.param_groups[0]["momentum"] == 0.9


def test_schedules_by_step() -> None:
    assert rates(4) == [1.0] * 4
    assert rates(4, scheduler="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates(4, scheduler="cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    step = rates(8, scheduler="step", scheduler_step=2, scheduler_gamma=0.1)
    assert step == pytest.approx([1.0] * 4 + [0.1] * 4)


def test_the_rate_warms_up_before_it_falls() -> None:
    warm = rates(6, warmup_epochs=1, scheduler="linear")
    assert warm == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25])


def test_a_plateau_of_the_metric_cuts_the_rate() -> None:
    config = TrainerConfig(lr=1.0, scheduler="plateau", scheduler_step=1, scheduler_gamma=0.5)
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], config)
    schedule = build_schedule(optimizer, config, steps_per_epoch=1, num_steps=9)
    found = []
    for metric in (0.1, 0.2, 0.2, 0.2, 0.3):
        schedule.after_step()
        schedule.after_evaluation(metric)
        found.append(optimizer.param_groups[0]["lr"])
    assert found == [1.0, 1.0, 1.0, 0.5, 0.5]
