"""Kernels that do not end, that end their process, and parents that end first."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from gnntrain.selfcheck import trying
from gnntrain.selfcheck.case import Case, Result
from gnntrain.selfcheck.cases import all_cases
from gnntrain.selfcheck.child_process import ChildProcess, DeadError, LateError
from gnntrain.selfcheck.trying import CannotTryError, try_cases
from tests.compute.devices import NEEDS_INTERPRETER
from tests.selfcheck import breaking

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = [NEEDS_INTERPRETER, pytest.mark.slow]

PATIENCE = 60.0


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets `BROKEN`, which processes from here on obey."""
    shutil.copyfile(breaking.__file__, tmp_path / "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return monkeypatch


def cases_of(*names: str) -> list[Case]:
    cases = {case.name: case for case in all_cases("cpu")}
    return [cases[name] for name in names]


GATHER = "gather: selected rows, fp32"
SUM, HEADS = "aggregate: sum, fp32", "aggregate: heads, fp32"
SAMPLER = "sampler: fan-outs 4, 3"


def tried(
    *names: str, number: int = 1, seconds: float = 500.0, before: Collection[str] = ()
) -> dict[str, Result]:
    results: list[Result] = []
    try_cases(cases_of(*names), "cpu", seconds, number, results, before)
    return {result.case: result for result in results}


def test_a_crash_is_found_and_named_and_the_others_are_tried(broken: pytest.MonkeyPatch) -> None:
    broken.setenv("BROKEN", "aggregate=abort")
    results = tried(SUM, HEADS, GATHER)
    assert list(results) == [SUM, GATHER]  # a further case of the kernel would tell nothing new
    assert "SIGABRT" in str(results[SUM].fault)
    assert results[SUM].is_lasting
    assert results[GATHER].fault is None


def test_a_hang_is_found_and_named_and_the_others_are_tried(broken: pytest.MonkeyPatch) -> None:
    broken.setenv("BROKEN", "gather=hang")
    broken.setattr(trying, "CASE_SECONDS", 4.0)
    began = time.monotonic()
    results = tried(GATHER, SAMPLER)
    assert "hang" in str(results[GATHER].fault)
    assert not results[GATHER].is_lasting  # the machine may have had too much to do
    assert tried(GATHER, before=[GATHER])[GATHER].is_lasting
    assert results[SAMPLER].fault is None
    assert time.monotonic() - began < PATIENCE


def test_an_exception_and_a_wrong_result_are_found_side_by_side(
    broken: pytest.MonkeyPatch,
) -> None:
    broken.setenv("BROKEN", "gather=raise,aggregate=wrong")
    results = tried(GATHER, SUM, number=2)
    assert "shared memory" in str(results[GATHER].fault)
    assert "error 0.01" in str(results[SUM].fault)


def test_what_is_not_done_in_time_has_no_result(broken: pytest.MonkeyPatch) -> None:
    broken.setenv("BROKEN", "gather=hang")
    began = time.monotonic()
    assert tried(GATHER, SUM, seconds=1.0) == {}
    assert time.monotonic() - began < PATIENCE


@pytest.mark.usefixtures("broken")
def test_a_process_that_does_not_start_is_told_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nos.write(2, b'no driver')\nos._exit(3)\n"
    )
    with pytest.raises(CannotTryError, match="exit code 3: no driver"):
        tried(GATHER)


@pytest.mark.usefixtures("broken")
def test_a_gpu_that_takes_one_process_alone_is_checked_by_it(tmp_path: Path) -> None:
    """As with nvidia-smi's exclusive mode."""
    alone = f"import os\ntry: os.mkdir({str(tmp_path / 'taken')!r})\nexcept OSError: os._exit(1)\n"
    (tmp_path / "sitecustomize.py").write_text(alone)
    results = tried(GATHER, SUM, SAMPLER, number=3)
    assert sorted(results) == sorted([GATHER, SUM, SAMPLER])


def test_a_process_ends_with_its_parent_even_while_a_kernel_does_not(
    broken: pytest.MonkeyPatch,
) -> None:
    broken.setenv("BROKEN", "gather=hang")
    child = ChildProcess("cpu")
    assert child.answer(time.monotonic() + PATIENCE) is None
    with pytest.raises(LateError):
        child.ask(GATHER, time.monotonic() + 0.5)
    assert child._process.stdin is not None
    child._process.stdin.close()  # as when the parent is killed
    with pytest.raises(DeadError):
        child.answer(time.monotonic() + PATIENCE)
    child.close()


def test_no_process_is_left_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    class Begun(ChildProcess):
        def ask(self, *_: object) -> object:
            begun.append(self._process.pid)
            raise KeyboardInterrupt

    monkeypatch.setattr(trying, "ChildProcess", Begun)
    with pytest.raises(KeyboardInterrupt):
        tried(GATHER)
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)
