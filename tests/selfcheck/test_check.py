"""What is tried at a start, and what is known from an earlier one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from gnntrain.selfcheck import cache, check
from gnntrain.selfcheck.cache import cache_file, held, load, save
from gnntrain.selfcheck.case import Case, Result
from gnntrain.selfcheck.cases import all_cases
from gnntrain.selfcheck.check import Checked, self_check
from gnntrain.selfcheck.gpus import GPU
from gnntrain.selfcheck.trying import CannotTryError

H100 = GPU("NVIDIA H100", "570.1", "cuda:0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for caches."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path / "cache")
    return tmp_path / "cache"


class Machine:
    """A GPU on which every case passes unless it is said otherwise.

    Attributes:
        tries: The cases of each call of `try_cases`.
        numbers: Of its processes.
        fault: Of a case.
        reached: How many cases have a result before the time is over.
        refusal: Why no process starts.
    """

    def __init__(self) -> None:
        self.tries: list[list[str]] = []
        self.numbers: list[int] = []
        self.fault: Callable[[Case], str | None] = lambda _: None
        self.is_lasting = True
        self.reached = 10**6
        self.refusal: str | None = None

    def try_cases(self, cases: Iterable[Case], *others: Any) -> None:
        if not cases:
            return
        _, _, number, results, _ = others
        self.tries.append([case.name for case in cases])
        self.numbers.append(number)
        if self.refusal is not None:
            raise CannotTryError(self.refusal)
        reached = list(cases)[: self.reached]
        self.reached -= len(reached)
        for case in reached:
            fault = self.fault(case)
            is_lasting = fault is None or self.is_lasting
            results.append(Result.of(case, fault, 1e-7, is_lasting=is_lasting))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(check, "try_cases", machine.try_cases)
    return machine


def checked(*precisions: str, **options: Any) -> Checked:
    return self_check(H100, precisions or ("fp32",), **options)


def names(precisions: Collection[str]) -> list[str]:
    return [case.name for case in all_cases("cuda") if case.precision in (None, *precisions)]


def test_a_second_start_tries_nothing(machine: Machine) -> None:
    found = checked()
    assert machine.tries == [names(["fp32"])]
    assert checked() == found
    assert len(machine.tries) == 1
    assert not found.faults


def test_another_precision_tries_its_cases_alone(machine: Machine) -> None:
    checked()
    checked("fp32", "bf16")
    assert machine.tries[1] == [name for name in names(["bf16"]) if name not in names([])]


def test_a_fresh_check_tries_all_again(machine: Machine) -> None:
    checked()
    checked(is_fresh=True)
    assert machine.tries[0] == machine.tries[1]


def test_a_fault_is_kept_and_its_kernel_not_tried_again(machine: Machine) -> None:
    machine.fault = lambda case: "wrong result" if case.name == "aggregate: sum, fp32" else None
    found = checked()
    assert list(found.faults) == ["aggregate"]
    assert "sum, fp32" in found.faults["aggregate"]
    assert checked().faults == found.faults
    assert len(machine.tries) == 1


def test_a_fault_in_a_precision_that_is_not_used_does_not_count(machine: Machine) -> None:
    machine.fault = lambda case: "no such type" if case.precision == "bf16" else None
    assert checked("fp32", "bf16").faults
    assert not checked("fp32").faults


def test_what_would_not_last_counts_once(machine: Machine) -> None:
    machine.fault = lambda case: "out of memory" if case.kernel == "gather" else None
    machine.is_lasting = False
    assert "gather" in checked().faults
    machine.fault = lambda _: None
    assert not checked().faults


def test_what_fails_among_others_is_tried_again_alone(machine: Machine) -> None:
    """With six processes on a GPU or a busy machine there may be no memory, or no time."""
    machine.is_lasting = False
    machine.fault = lambda case: (
        "hangs" if case.kernel == "gather" and len(machine.tries) == 1 else None
    )
    assert not checked().faults
    again = [name for name in names(["fp32"]) if name.startswith("gather")]
    assert machine.tries[1] == again
    assert machine.numbers[1] == 1


def test_what_fails_again_at_the_next_start_has_failed_before(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.is_lasting = False
    machine.fault = lambda case: "hangs" if case.kernel == "gather" else None
    checked()
    before: list[Collection[str]] = []
    monkeypatch.setattr(check, "try_cases", lambda *given: before.append(given[5]))
    assert "gather" in checked().faults  # as long as no try has passed
    assert "gather: selected rows, fp32" in before[0]


def test_what_was_not_reached_is_not_used_and_tried_at_the_next_start(machine: Machine) -> None:
    machine.reached = 3
    found = checked()
    assert "aggregate" in found.faults
    assert "gather" not in found.faults
    machine.reached = 10**6
    machine.tries.clear()
    assert not checked().faults
    assert machine.tries[0] == names(["fp32"])[3:]


def test_where_no_process_starts_no_kernel_is_used_and_the_next_start_tries(
    machine: Machine,
) -> None:
    machine.refusal = "no driver"
    faults = checked().faults
    assert set(faults) == {case.kernel for case in all_cases("cuda")}
    assert "no driver" in faults["gather"]
    machine.refusal = None
    assert not checked().faults


def test_each_gpu_driver_and_version_has_results_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {cache_file(gpu) for gpu in (H100, H100._replace(driver="1"), GPU("A100", "1", ""))}
    monkeypatch.setattr(cache, "package_version", lambda name: name + "2")
    files.add(cache_file(H100))
    monkeypatch.setattr(cache, "_sources", lambda: "other sources")
    files.add(cache_file(H100))
    monkeypatch.setenv("CC", "another compiler")
    files.add(cache_file(H100))
    assert len(files) == 6
    assert cache_file(H100) == cache_file(H100._replace(device="cuda:3"))


RESULTS = [Result("gather: x", "gather", "fp32"), Result("sampler: y", "sampler", None, "wrong")]


def test_results_are_read_as_they_were_saved() -> None:
    path = cache_file(H100)
    with held(path, 1):
        save(path, RESULTS)
    assert list(load(path).values()) == RESULTS


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '[{"case": 1}]', "\xff"])
def test_a_damaged_file_has_no_results(folder: Path, text: str) -> None:
    path = folder / "x.json"
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    assert load(path) == {}


def test_a_folder_that_cannot_be_written_means_checking_again(
    machine: Machine, folder: Path
) -> None:
    folder.write_text("a file where the folder should be")
    assert not checked().faults
    assert not checked().faults
    assert machine.tries[0] == machine.tries[1]


def test_who_waits_too_long_for_another_goes_on(machine: Machine) -> None:
    """That one may be stopped, or on a machine that is gone."""
    with held(cache_file(H100), 1):
        found = checked(seconds=0.3)
    assert machine.tries[0] == names(["fp32"])
    assert not found.faults


def test_others_wait_for_who_checks() -> None:
    path, events = cache_file(H100), []

    def second() -> None:
        with held(path, 60):
            events.append("second")

    thread = threading.Thread(target=second)
    with held(path, 1):
        thread.start()
        thread.join(0.2)
        events.append("first")
    thread.join()
    assert events == ["first", "second"]
