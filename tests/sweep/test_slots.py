"""How the trials of a sweep share the machine."""

from __future__ import annotations

import pytest

from gnntrain import devices
from gnntrain.config import Config, ConfigError, from_dict
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
    return from_dict(raw)


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


@pytest.mark.parametrize(
    ("kind", "environment", "variable", "names"),
    [
        ("cuda", {}, "CUDA_VISIBLE_DEVICES", ["0", "1"]),
        (
            "cuda",
            {"CUDA_VISIBLE_DEVICES": "GPU-8a1b, 3"},
            "CUDA_VISIBLE_DEVICES",
            ["GPU-8a1b", "3"],
        ),
        ("xpu", {"ZE_AFFINITY_MASK": "2,3"}, "ZE_AFFINITY_MASK", ["2", "3"]),
        ("xpu", {"CUDA_VISIBLE_DEVICES": "4,5"}, "ZE_AFFINITY_MASK", ["0", "1"]),
    ],
    ids=str,
)
def test_a_trial_sees_its_gpus_by_the_variable_of_their_kind(
    kind: str,
    environment: dict[str, str],
    variable: str,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0")
    monkeypatch.setattr(devices, "gpus_here", lambda: {kind: 2})
    assert plan_slots(config(), 9).environments == [{variable: name} for name in names]


@pytest.mark.parametrize(("hip", "named"), [(None, "CUDA"), ("6.4", "HIP")])
def test_amds_variable_goes_before_nvidias(
    hip: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("torch.version.hip", hip)
    assert devices.visibility("cuda") == f"{named}_VISIBLE_DEVICES"


def test_trials_of_the_cpu_get_no_gpu_and_run_one_after_another_unless_asked() -> None:
    plan = plan_slots(config(), 10, gpus=[])
    assert (plan.devices, plan.threads, plan.num_gpus) == ([None], None, None)
    assert plan.share(config()) == config()
    asked = config(trainer_device="cpu", sweep_jobs=2)
    assert plan_slots(asked, 9, gpus=["0", "1"]).environments == [None, None]
    assert plan_slots(config(trainer_gpus=0, sweep_jobs=2), 9, gpus=["0", "1"]).num_gpus is None
    of_gpus = plan_slots(config(), 9, gpus=["5", "7"])
    assert list(of_gpus.devices) == ["5", "7"]
    assert of_gpus.share(config(trainer_device="cpu")).trainer.gpus == "auto"
