"""Who computes, by what is asked for, the device, and what the self-check finds on any machine; and
what the check tries at a start, by what is known from an earlier one."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from filelock import FileLock

from gnntrain.compute.selection import KernelChoice
from gnntrain.config import ComputeConfig, Config, SyntheticConfig, TrainerConfig
from gnntrain.errors import RunError, UserError
from gnntrain.selfcheck import choice, kernel_choice
from gnntrain.selfcheck.cases import Case, all_cases
from gnntrain.selfcheck.choice import GPU, cache_file, faults_of, kinds_of_gpus, self_check
from gnntrain.selfcheck.trying import Outcome

H100 = GPU("NVIDIA H100", "570.1", "cuda:0")
SUM = "aggregate: sum, fp32"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for caches."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path / "cache")
    return tmp_path / "cache"


class Machine:
    """Stands for `try_cases`, on a GPU on which every case passes unless it is said otherwise.

    Attributes:
        tries: The names of the cases of each call that had any, and how many are tried at once.
        outcome: Of a case.
        reached: How many cases have an outcome before the time is over.
        failure: Why no process starts.
    """

    def __init__(self) -> None:
        self.tries: list[tuple[list[str], int]] = []
        self.outcome: Callable[[Case], Outcome] = lambda _: Outcome()
        self.reached = 10**6
        self.failure: str | None = None

    def try_cases(
        self, cases: Sequence[Case], _: str, __: float, number: int, known: dict[str, Outcome]
    ) -> str | None:
        if cases:
            self.tries.append(([case.name for case in cases], number))
        reached = [] if self.failure else cases[: self.reached]
        self.reached -= len(reached)
        known |= {case.name: self.outcome(case) for case in reached}
        return self.failure


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(choice, "try_cases", machine.try_cases)
    return machine


def faults(*precisions: str, **options: Any) -> dict[str, str]:
    return faults_of(self_check(H100, precisions or ("fp32",), **options))


def names(precisions: Sequence[str] = ("fp32",)) -> list[str]:
    return [case.name for case in all_cases() if case.precision in (None, *precisions)]


def test_a_second_start_tries_nothing_and_a_fresh_check_all(machine: Machine) -> None:
    outcomes = self_check(H100, ("fp32",))
    assert [case.name for case in outcomes] == machine.tries[0][0] == names()
    again = self_check(H100, ("fp32",))
    assert list(again.values()) == list(outcomes.values()) == [Outcome()] * len(outcomes)
    assert len(machine.tries) == 1
    assert not faults(is_fresh=True)
    assert machine.tries[1] == machine.tries[0]


def test_another_precision_tries_its_cases_alone(machine: Machine) -> None:
    faults()
    faults("fp32", "bf16")
    assert machine.tries[1][0] == [name for name in names(["bf16"]) if name not in names([])]


def test_a_fault_is_kept_and_its_kernel_not_tried_again(machine: Machine) -> None:
    machine.outcome = lambda case: Outcome("wrong" if case.name == SUM else None)
    assert faults() == {"aggregate": "wrong [sum, fp32]"} == faults()
    assert len(machine.tries) == 1


def test_a_fault_in_a_precision_that_is_not_used_does_not_count(machine: Machine) -> None:
    machine.outcome = lambda case: Outcome("no type" if case.precision == "bf16" else None)
    assert faults("fp32", "bf16")
    assert not faults("fp32")


def test_what_would_not_last_is_tried_again_alone_and_at_the_next_start(machine: Machine) -> None:
    """With six processes on a GPU or a busy machine there may be no memory, or no time."""
    short = Outcome("out of memory", is_lasting=False)
    machine.outcome = lambda case: short if case.kernel == "gather" else Outcome()
    assert list(faults()) == ["gather"]
    again = [name for name in names() if name.startswith("gather")]
    assert machine.tries[1:] == [(again, 1)]
    machine.outcome = lambda _: Outcome()
    assert not faults()
    assert machine.tries[2][0] == again


def test_what_was_not_reached_is_not_used_and_tried_at_the_next_start(machine: Machine) -> None:
    machine.reached = 3
    assert "not checked yet" in faults()["aggregate"]
    assert "gather" not in faults()
    machine.reached = 10**6
    machine.tries.clear()
    assert not faults()
    assert machine.tries[0][0] == names()[3:]


def test_where_no_process_starts_no_kernel_is_used_and_the_next_start_tries(
    machine: Machine,
) -> None:
    machine.failure = "no driver"
    found = faults()
    assert set(found) == {case.kernel for case in all_cases()}
    assert "no driver" in found["gather"]
    machine.failure = None
    assert not faults()


def test_each_gpu_driver_and_version_has_outcomes_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {cache_file(gpu) for gpu in (H100, H100._replace(driver="1"), GPU("A100", "1", ""))}
    monkeypatch.setattr(choice, "package_version", lambda name: name + "2")
    files.add(cache_file(H100))
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"other sources")
    files.add(cache_file(H100))
    monkeypatch.setenv("CC", "another compiler")
    files.add(cache_file(H100))
    assert len(files) == 6
    assert cache_file(H100) == cache_file(H100._replace(device="cuda:3"))


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '{"a": [1, 2, 3, 4]}', "\xff"])
def test_a_damaged_file_means_checking_again(machine: Machine, text: str) -> None:
    path = cache_file(H100)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="latin-1")
    assert not faults()
    assert machine.tries[0][0] == names()


def test_a_folder_that_cannot_be_written_means_checking_again(
    machine: Machine, folder: Path
) -> None:
    folder.write_text("a file where the folder should be")
    assert not faults()
    assert not faults()
    assert machine.tries[0] == machine.tries[1]


def test_others_wait_for_who_checks_but_not_for_ever(machine: Machine) -> None:
    path = cache_file(H100)
    path.parent.mkdir(parents=True)
    with FileLock(path.with_suffix(".lock")), ThreadPoolExecutor(2) as pool:
        assert pool.submit(faults, seconds=0.3).result() == {}  # the other one may be stopped
        assert len(machine.tries) == 1
        path.unlink()
        waiting = pool.submit(faults)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        path.write_text(json.dumps(dict.fromkeys(names(), Outcome())))
    assert waiting.result() == {}
    assert len(machine.tries) == 1


def config(kernels: Literal["auto", "triton", "torch"] = "auto", **trainer: Any) -> Config:
    return Config(compute=ComputeConfig(kernels=kernels), trainer=TrainerConfig(**trainer))


FINE: dict[Case, Outcome] = {}
FAULTY = {
    Case(SUM, "aggregate", "fp32", lambda _: 0.0): Outcome("wrong result"),
    Case("sampler: padded", "sampler", None, lambda _: 0.0): Outcome(),
    Case("pair_scores: heads, fp32", "pair_scores", "fp32", lambda _: 0.0): Outcome("not checked"),
}


class Checks:
    """Stands for the self-check.

    Attributes:
        asked: The GPU and precisions of each check.
        found: What it finds on a GPU.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[GPU, set[str]]] = []
        self.found: Callable[[GPU], dict[Case, Outcome]] = lambda _: FINE

    def __call__(self, gpu: GPU, precisions: set[str], **_: Any) -> dict[Case, Outcome]:
        self.asked.append((gpu, precisions))
        return self.found(gpu)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    found = Checks()
    monkeypatch.setattr(choice, "self_check", found)
    monkeypatch.setattr(choice, "kinds_of_gpus", lambda kind: [GPU("H100", "1", f"{kind}:0")])
    monkeypatch.setattr(choice, "find_spec", lambda _: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return found


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


def listed(*kinds: str) -> list[dict[str, Any]]:
    return [{"name": name, "memory_bytes": 2**36, "driver": "570.1"} for name in kinds]


def test_equal_gpus_are_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "visible_gpus", lambda: listed("H100", "H100"))
    assert kinds_of_gpus("cuda") == [GPU("H100", "570.1", "cuda:0")]


@pytest.mark.parametrize("found", [listed("T4", "H100"), []], ids=["two kinds", "no tool"])
def test_where_no_tool_tells_torch_is_asked(
    found: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "visible_gpus", lambda: found)
    done = SimpleNamespace(stdout=b'a warning\n["H100", "H100", "T4"]\n')
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert [gpu[::2] for gpu in kinds_of_gpus("cuda")] == [("H100", "cuda:0"), ("T4", "cuda:2")]


def test_torch_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "visible_gpus", list)
    kinds_of_gpus("cuda")
    monkeypatch.setattr(choice, "_NAMES_OF_GPUS", "raise SystemExit(1)")
    with pytest.raises(RunError):
        kinds_of_gpus("cuda")
