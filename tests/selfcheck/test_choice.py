"""Who computes, by what is asked for, the device, and what the self-check finds on any machine; and
what the check tries at a start, by what is known from an earlier one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from filelock import FileLock

from gnntrain.compute.selection import KernelChoice
from gnntrain.config import ComputeConfig, Config, SyntheticConfig, TrainerConfig
from gnntrain.errors import UserError
from gnntrain.selfcheck import choice
from gnntrain.selfcheck.cases import Case, Outcome, all_cases
from gnntrain.selfcheck.choice import (
    cache_file,
    faults_of,
    kernel_choice,
    kinds_of_gpus,
    self_check,
)

H100 = "NVIDIA H100, driver 570.1"


class Machine:
    """An H100, on which every case passes unless it is said otherwise.

    Attributes:
        tries: The cases of each call that had any.
        outcome: Of a case.
    """

    def __init__(self) -> None:
        self.tries: list[list[Case]] = []
        self.outcome: Callable[[Case], Outcome] = lambda _: Outcome()

    def try_cases(self, cases: Sequence[Case], _: str) -> dict[Case, Outcome]:
        self.tries += [[*cases]] if cases else []
        return {case: self.outcome(case) for case in cases}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    machine = Machine()
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.setattr(choice, "try_cases", machine.try_cases)
    monkeypatch.setattr(choice, "kinds_of_gpus", lambda _: {H100: "cuda:0"})
    monkeypatch.setattr(choice, "find_spec", lambda _: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return machine


def faults(*precisions: str) -> dict[str, str]:
    return faults_of(self_check(H100, "cuda:0", precisions or ("fp32",)))


def cases(*precisions: str) -> list[Case]:
    return [case for case in all_cases() if case[1] in (precisions or ("fp32",))]


def test_a_second_start_tries_nothing(machine: Machine) -> None:
    outcomes = self_check(H100, "cuda:0", ("fp32",))
    assert [*outcomes] == machine.tries[0] == cases()
    again = self_check(H100, "cuda:0", ("fp32",))
    assert list(again.values()) == list(outcomes.values()) == [Outcome()] * len(outcomes)
    assert len(machine.tries) == 1


def test_a_fault_is_kept_for_its_precision_and_not_tried_again(machine: Machine) -> None:
    machine.outcome = lambda case: Outcome("wrong" if case == ("aggregate", "bf16") else None)
    for _ in range(2):
        assert faults("fp32", "bf16") == {"aggregate": "wrong"}
        assert not faults("fp32")
    assert len(machine.tries) == 1


def test_what_would_not_last_is_tried_at_the_next_start(machine: Machine) -> None:
    """On a busy machine there may be no memory."""
    short = Outcome("out of memory", is_lasting=False)
    machine.outcome = lambda case: short if case[0] == "gather" else Outcome()
    assert list(faults()) == ["gather"]
    machine.outcome = lambda _: Outcome()
    assert not faults()
    assert machine.tries[1] == [("gather", "fp32")]


def test_each_gpu_driver_and_version_has_outcomes_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {cache_file(gpu) for gpu in (H100, "NVIDIA H100, driver 1", "A100, driver 1")}
    monkeypatch.setattr(choice, "package_version", lambda name: name + "2")
    files.add(cache_file(H100))
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"other sources")
    files.add(cache_file(H100))
    monkeypatch.setenv("CC", "another compiler")
    files.add(cache_file(H100))
    assert len(files) == 6


@pytest.mark.parametrize("text", ["[1]", '[["gather", "fp32", [1, 2, 3, 4]]]', "\xff"])
def test_a_damaged_file_means_checking_again(machine: Machine, text: str) -> None:
    path = cache_file(H100)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="latin-1")
    assert not faults()
    assert machine.tries[0] == cases()


def test_without_a_cache_each_start_checks_again(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert faults() == faults() == {}
    assert machine.tries[0] == machine.tries[1]


def test_others_wait_for_who_checks(machine: Machine) -> None:
    path = cache_file(H100)
    path.parent.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with FileLock(path.with_suffix(".lock")):
            waiting = pool.submit(faults)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            path.write_text(json.dumps([(*case, Outcome()) for case in cases()]))
        assert waiting.result() == {}
    assert not machine.tries


def test_an_interrupted_check_lets_the_next_one_begin(machine: Machine) -> None:
    """In a notebook the interrupted one's variables stay."""

    def interrupt(_: Case) -> Outcome:
        raise KeyboardInterrupt

    machine.outcome = interrupt
    with pytest.raises(KeyboardInterrupt) as error:
        faults()
    FileLock(cache_file(H100).with_suffix(".lock")).acquire(timeout=0)
    assert error.traceback


def config(kernels: Literal["auto", "triton", "torch"] = "auto", **trainer: Any) -> Config:
    return Config(compute=ComputeConfig(kernels=kernels), trainer=TrainerConfig(**trainer))


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
    kernels: Any, device: str, expected: Any, machine: Machine
) -> None:
    assert kernel_choice(config(kernels), device) == KernelChoice(expected)
    assert not machine.tries


@pytest.mark.usefixtures("machine")
def test_without_triton_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda _: None)
    assert kernel_choice(config(), "cuda") == KernelChoice("torch")
    assert "triton" in caplog.text
    with pytest.raises(UserError, match="triton"):
        kernel_choice(config("triton"), "cuda")


def test_the_run_s_precisions_are_checked(machine: Machine) -> None:
    assert kernel_choice(config(), "cuda") == KernelChoice("triton")
    kernel_choice(config(precision="bf16"), "cuda")
    kernel_choice(Config(dataset=SyntheticConfig(feature_dtype="float16")), "cuda")
    assert machine.tries == [cases(), cases("bf16"), cases("fp16")]


def test_a_fault_on_one_process_counts_on_all_and_is_told_once(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    for number in (0, 1):
        own = tmp_path / str(number)  # no cache in common
        monkeypatch.setattr("platformdirs.user_cache_path", lambda _, own=own: own)
        process: Any = SimpleNamespace(
            is_main=number == 0, gather=lambda _, faults: [faults, {"gather": "hangs"}]
        )
        expected = KernelChoice("triton", {"gather": "hangs"})
        assert kernel_choice(config(), "cuda", process) == expected
    assert len(machine.tries) == 2
    assert caplog.text.count("take their place") == 1


@pytest.mark.parametrize(
    ("listed", "devices"),
    [(["H100", "H100"], ["cuda:0"]), (["T4", "H100"], ["cuda:0", "cuda:1"]), ([], ["cuda:0"])],
    ids=["one kind", "torch may count otherwise", "no tool"],
)
def test_each_kind_of_gpu_is_checked(
    listed: list[str], devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [{"name": name, "driver": "570.1"} for name in listed]
    monkeypatch.setattr(choice, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: max(1, len(listed)))
    kinds = kinds_of_gpus("cuda")
    assert [*kinds.values()] == devices
