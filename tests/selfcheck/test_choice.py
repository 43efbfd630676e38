"""Who computes, by what is asked for, the device, and what the self-check finds on any machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from gnntrain.compute.selection import KernelChoice
from gnntrain.config import ComputeConfig, Config, SyntheticConfig, TrainerConfig
from gnntrain.errors import UserError
from gnntrain.selfcheck import choice, kernel_choice
from gnntrain.selfcheck.case import Result
from gnntrain.selfcheck.check import Checked
from gnntrain.selfcheck.gpus import GPU

FINE = Checked([], {})


def config(kernels: Literal["auto", "triton", "torch"] = "auto", **trainer: Any) -> Config:
    return Config(compute=ComputeConfig(kernels=kernels), trainer=TrainerConfig(**trainer))


class Checks:
    """Stands for the self-check.

    Attributes:
        asked: The GPU, precisions and options of each check.
        found: What it finds on a GPU.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[GPU, set[str], dict[str, Any]]] = []
        self.found: Callable[[GPU], Checked] = lambda _: FINE

    def __call__(self, gpu: GPU, precisions: set[str], **options: Any) -> Checked:
        self.asked.append((gpu, precisions, options))
        return self.found(gpu)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    found = Checks()
    monkeypatch.setattr(choice, "self_check", found)
    monkeypatch.setattr(choice, "kinds_of_gpus", lambda kind: [GPU("H100", "1", f"{kind}:0")])
    monkeypatch.setattr(choice, "find_spec", lambda _: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return found


FAULTY = Checked(
    [
        Result("aggregate: sum, fp32", "aggregate", "fp32", "wrong result"),
        Result("sampler: padded", "sampler", None),
    ],
    {"pair_scores": "not checked yet"},
)


@pytest.mark.parametrize(
    ("kernels", "device", "expected"),
    [
        ("auto", "cpu", "numba"),
        ("torch", "cpu", "torch"),
        ("torch", "cuda", "torch"),
        ("auto", "mps", "torch"),
        ("auto", "sim", "torch"),
        ("triton", "cpu", "numba"),  # the run of a GPU, evaluated on a CPU
    ],
)
def test_some_devices_need_no_check(
    kernels: Any, device: str, expected: str, checks: Checks
) -> None:
    assert kernel_choice(config(kernels), device) == KernelChoice(expected)  # type: ignore[arg-type]
    assert not checks.asked


@pytest.mark.usefixtures("checks")
def test_a_gpu_whose_kernels_pass_takes_them(caplog: pytest.LogCaptureFixture) -> None:
    assert kernel_choice(config(), "cuda") == KernelChoice("triton")
    assert not caplog.records


def test_what_fails_is_replaced_and_named(checks: Checks, caplog: pytest.LogCaptureFixture) -> None:
    checks.found = lambda _: FAULTY
    found = kernel_choice(config(), "cuda")
    assert found.kernels == "triton"
    assert set(found.replaced) == {"aggregate", "pair_scores"}
    assert "wrong result" in found.replaced["aggregate"]
    (record,) = caplog.records
    assert "aggregate" in record.message
    assert "pair_scores" in record.message


def test_who_insists_on_triton_is_refused(checks: Checks) -> None:
    checks.found = lambda _: FAULTY
    with pytest.raises(UserError, match="aggregate") as caught:
        kernel_choice(config("triton"), "cuda")
    assert "compute.kernels=auto" in str(caught.value.hint)


@pytest.mark.usefixtures("checks")
def test_without_triton_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda _: None)
    assert kernel_choice(config(), "cuda") == KernelChoice("torch")
    assert "triton" in caplog.text
    with pytest.raises(UserError, match="triton"):
        kernel_choice(config("triton"), "cuda")


def test_the_run_s_precisions_are_checked(checks: Checks) -> None:
    kernel_choice(config(), "cuda")
    kernel_choice(config(precision="bf16"), "cuda")
    features = Config(dataset=SyntheticConfig(feature_dtype="float16"))
    kernel_choice(features, "cuda")
    assert [asked[1] for asked in checks.asked] == [{"fp32"}, {"fp32", "bf16"}, {"fp32", "fp16"}]


class Meeting:
    """The processes of a launcher, as threads: by process its machine and its GPU."""

    def __init__(self, machines: Sequence[int], gpus: Sequence[str]) -> None:
        self.machines = tuple(machines)
        self.gpus = gpus
        self._values: dict[str, dict[int, Any]] = {}
        self._barrier = threading.Barrier(len(machines))

    def process(self, number: int) -> Any:
        def gather(key: str, value: Any) -> list[Any]:
            self._values.setdefault(key, {})[number] = value
            self._barrier.wait(10)
            return [self._values[key][one] for one in range(len(self.machines))]

        return SimpleNamespace(
            machines=self.machines,
            launched=SimpleNamespace(process=number),
            is_main=number == 0,
            gather=gather,
        )

    def choices(self, asked: Config, monkeypatch: pytest.MonkeyPatch) -> list[KernelChoice]:
        own = threading.local()
        monkeypatch.setattr(
            choice, "kinds_of_gpus", lambda _: [GPU(self.gpus[own.number], str(own.number), "")]
        )

        def chosen(number: int) -> KernelChoice:
            own.number = number
            return kernel_choice(asked, "cuda", self.process(number))

        with ThreadPoolExecutor(len(self.machines)) as pool:
            return list(pool.map(chosen, range(len(self.machines))))


def test_one_process_checks_each_kind_of_a_machine(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting([0, 0, 0, 1, 1], ["H100", "H100", "T4", "H100", "H100"])
    assert meeting.choices(config(), monkeypatch) == [KernelChoice("triton")] * 5
    assert sorted(asked[0].driver for asked in checks.asked) == ["0", "2", "3"]


def test_what_fails_anywhere_is_replaced_everywhere(
    checks: Checks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checks.found = lambda gpu: FAULTY if gpu.driver == "1" else FINE
    found = Meeting([0, 1], ["H100", "H100"]).choices(config(), monkeypatch)
    assert found[0] == found[1]
    assert set(found[0].replaced) == {"aggregate", "pair_scores"}
    assert len(caplog.records) == 1  # process 0 tells


@pytest.mark.parametrize("name", ["aggregate", "gather", "host memory"])
def test_kernels_that_cannot_read_host_memory_are_not_asked_to(name: str) -> None:
    assert KernelChoice("triton", {"pair_scores": "slow"}).reads_host
    assert not KernelChoice("triton", {name: "wrong"}).reads_host
