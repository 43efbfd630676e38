"""How the trials of a sweep share the machine."""

from __future__ import annotations

import pytest

from gnntrain.app import compose_config
from gnntrain.config import Config, ConfigError
from gnntrain.sweep import slots
from gnntrain.sweep.slots import plan_slots


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "available_cores", lambda: 8)


def config(**keys: object) -> Config:
    raw: dict[str, dict[str, object]] = {}
    for key, value in keys.items():
        section, _, name = key.partition("_")
        raw.setdefault(section, {})[name] = value
    return Config.model_validate(raw)


def test_on_the_cpu_one_after_another_unless_asked() -> None:
    plan = plan_slots(config(), 10, gpus=[])
    assert (plan.devices, plan.threads, plan.num_gpus) == ([None], None, None)
    assert plan.share(config()) == config()


def test_trials_at_the_same_time_get_their_share_of_the_cores() -> None:
    asked = config(sweep_jobs=4)
    plan = plan_slots(asked, 10, gpus=[])
    assert len(plan.devices) == 4
    assert plan.share(asked).distributed.threads == 2
    own = config(sweep_jobs=4, distributed_threads=1)
    assert plan.share(own) == own
    ranks = config(sweep_jobs=2, distributed_num_processes=2)
    assert plan_slots(ranks, 10, gpus=[]).threads == 2
    assert len(plan_slots(asked, 3, gpus=[]).devices) == 3


def test_more_trials_than_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 8: there are 8 cores"):
        plan_slots(config(sweep_jobs=9), 10, gpus=[])
    with pytest.raises(ConfigError, match=r"at most 4: .* a trial takes 2"):
        plan_slots(config(sweep_jobs=5, distributed_num_processes=2), 10, gpus=[])


@pytest.mark.parametrize(
    ("keys", "num_trials", "devices", "each"),
    [
        ({}, 10, ["0", "1", "2", "3"], 1),
        ({}, 2, ["0", "1"], 1),
        ({"trainer_gpus": 2}, 10, ["0,1", "2,3"], 2),
        ({"sweep_jobs": 1}, 10, ["0,1,2,3"], 4),
        ({"sweep_jobs": 2}, 10, ["0,1", "2,3"], 2),
        # More than there are: they share.
        ({"sweep_jobs": 6}, 10, ["0", "1", "2", "3", "0", "1"], 1),
    ],
)
def test_every_trial_has_gpus_of_its_own(
    keys: dict[str, object], num_trials: int, devices: list[str], each: int
) -> None:
    asked = config(**keys)
    plan = plan_slots(asked, num_trials, gpus=["0", "1", "2", "3"])
    assert list(plan.devices) == devices
    # The run says how many it had: its global batch depends on it.
    assert plan.share(asked).trainer.gpus == each


def test_gpus_that_were_chosen_from_outside_stay_the_choice() -> None:
    assert list(plan_slots(config(), 9, gpus=["5", "7"]).devices) == ["5", "7"]


def test_trials_on_the_cpu_do_not_look_for_gpus() -> None:
    asked = compose_config(["trainer.gpus=0", "sweep.jobs=2"]).config
    assert plan_slots(asked, 9, gpus=["0", "1"]).num_gpus is None
