"""What the doctor sees on machines of all kinds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain import devices, limits
from gnntrain.cli import main
from gnntrain.config import Config, RunConfig, SamplerConfig, SyntheticConfig, TrainerConfig
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.doctor import checks
from gnntrain.errors import RunError
from gnntrain.reporting.tables import Check

A100 = {"name": "A100", "memory_bytes": 2**36, "driver": "550.1"}


def by_name(found: Iterable[Check]) -> dict[str, Check]:
    return {check.name: check for check in found}


def test_a_requirement_that_is_missing_or_too_old_is_a_problem_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = ["numpy>=999", "no-such-package>=2", "numba>=0.1", 'other>=9; extra == "test"']
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    found = by_name(checks.required_packages())
    assert found["numpy"].judgement == found["no-such-package"].judgement == "problem"
    assert "pip install 'no-such-package>=2'" in found["no-such-package"].hint
    assert ">=999" in found["numpy"].text
    assert found["numba"].judgement == "ok"
    assert "other" not in found


def test_a_package_that_cannot_be_loaded_ends_the_examination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> None:
        if name == "torch":
            raise OSError("libcudart.so: no such file")

    monkeypatch.setattr("importlib.import_module", refuse)
    sections = dict(checks.check_machine(Config()))
    assert "libcudart" in by_name(sections["packages"])["torch"].text
    assert list(sections) == ["packages", "optional"]


def test_an_optional_package_that_is_missing_is_a_note_that_says_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "package_version", lambda name: "1.0" if name == "wandb" else None)
    found = by_name(checks.optional_packages())
    assert found["wandb"] == Check("ok", "wandb", "1.0")
    assert found["mlflow"].judgement == "note"
    assert "logger=mlflow" in found["mlflow"].text


@pytest.mark.parametrize(
    ("flags", "judgement", "words"),
    [
        ("flags : sse avx2 avx512f amx_bf16", "ok", "avx512f, amx_bf16"),
        ("flags : sse avx2", "ok", "no bf16"),
        ("flags : sse", "note", "neither"),
    ],
)
def test_the_instructions_that_matter_are_named(
    flags: str, judgement: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: flags)
    finding = by_name(checks.processor())["vectors"]
    assert (finding.judgement, words in finding.text) == (judgement, True)


def test_the_limits_of_a_container_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    monkeypatch.setattr(limits, "_CGROUPS", tmp_path)
    quota = by_name(checks.processor())["quota"]
    assert "0.5 cores" in quota.text
    assert by_name(checks.processor())["cores"].text.startswith("1 of ")
    assert "1.00 GiB" in by_name(checks.memory())["limit"].text
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert "quota" not in by_name(checks.processor())
    assert "limit" not in by_name(checks.memory())


def test_a_gpu_that_torch_cannot_use_is_a_problem_unless_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "visible_gpus", lambda: [A100])
    monkeypatch.setattr(devices, "gpus_here", dict)
    monkeypatch.setattr(devices, "software", str)
    (finding,) = checks.gpus(Config())
    assert finding.judgement == "problem"
    assert "a build for the CPU" in finding.text
    assert next(checks.gpus(Config(trainer=TrainerConfig(gpus=0)))).judgement == "ok"
    only_cpu = Config(trainer=TrainerConfig(device="cpu"))
    assert next(checks.gpus(only_cpu)).judgement == "ok"
    monkeypatch.setattr(devices, "software", lambda: "CUDA 12.8")
    assert "550.1" in next(checks.gpus(Config())).hint
    monkeypatch.setattr(checks, "visible_gpus", list)
    assert next(checks.gpus(Config())).judgement == "note"


@pytest.mark.parametrize(
    ("sections", "device", "sampler", "kernels"),
    [
        ({}, "cpu", "numba", "Numba"),
        ({"compute": {"kernels": "torch"}}, "cpu", "numba", "torch"),
        ({}, "cuda", "triton", "Triton"),
        ({"compute": {"kernels": "torch"}}, "cuda", "numba", "torch"),
        ({}, "mps", "numba", "torch"),
    ],
    ids=str,
)
def test_who_computes_and_draws_depends_on_the_device(
    sections: dict[str, Any],
    device: str,
    sampler: str,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LaunchPlan, "of", lambda _: LaunchPlan(1, device, 2, 60))
    monkeypatch.setattr(checks, "find_spec", lambda _: True)
    found = by_name(checks.chosen_by_auto(Config(**sections)))
    assert kernels in found["kernels"].text
    assert f"({sampler}" in found["sampler"].text


def test_a_gpu_that_does_not_compute_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.device) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(devices, "describe", fail)
    finding = checks._gpu(torch.device("cuda", 0))
    assert finding.judgement == "problem"
    assert "no kernel image" in finding.text


def test_folders_are_tried_where_they_will_be(tmp_path: Path) -> None:
    config = Config(
        dataset=SyntheticConfig(store_dir=str(tmp_path / "not" / "yet")),
        run=RunConfig(dir="/proc/self/run"),
    )
    stores, runs, _ = checks.disk(config)
    assert stores.judgement in ("ok", "note")
    assert "free" in stores.text
    assert runs.judgement == "problem"
    assert "run.dir=DIR" in runs.hint
    assert list(tmp_path.iterdir()) == []


def test_a_cache_of_kernels_that_cannot_be_written_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert by_name(checks.disk(Config()))["kernels"].judgement == "ok"
    monkeypatch.setattr(checks, "may_write", lambda _: False)
    assert "NUMBA_CACHE_DIR" in by_name(checks.disk(Config()))["kernels"].hint


@pytest.mark.slow
def test_two_ranks_really_add_up() -> None:
    finding = checks.check_two_ranks()
    assert finding.judgement == "ok"
    assert "is right" in finding.text


def test_ranks_that_cannot_meet_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RunError("Rank 1 failed: timeout")

    monkeypatch.setattr("gnntrain.distributed.launch.launch", fail)
    finding = checks.check_two_ranks()
    assert finding.judgement == "problem"
    assert "Rank 1 failed" in finding.text


def test_what_auto_chooses_is_what_a_run_does() -> None:
    config = Config(sampler=SamplerConfig(threads=3), trainer=TrainerConfig(gpus=0))
    found = by_name(checks.chosen_by_auto(config))
    assert found["ranks"].text == "1 CPU rank"
    assert found["loader"].text == "3 background threads a rank"
    assert found["sampler"].text == "neighbor [10,10] (numba)"
    assert "graph" not in found


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    found = [Check("ok", "a", "good"), Check("note", "b", "so so", "Try this.")]
    monkeypatch.setattr(checks, "check_machine", lambda _: iter([("things", found)]))
    return found


def test_the_exit_code_says_whether_something_needed_fails(
    found: list[Check], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    assert "1 note" in capsys.readouterr().out
    found.append(Check("problem", "long name", "broken", "Mend it."))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == GOLDEN


GOLDEN = """\
things
  ok       a          good
  note     b          so so
                      → Try this.
  problem  long name  broken
                      → Mend it.

1 problem, 1 note
"""


def test_the_findings_as_json(
    found: list[Check], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    told: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert told[0]["findings"][0] == {"judgement": "ok", "name": "a", "text": "good", "hint": ""}
    assert main(["doctor", f"--json={tmp_path}/found.json"]) == 0
    assert json.loads((tmp_path / "found.json").read_text()) == told
    assert main(["doctor", "--json", str(tmp_path / "no" / "folder")]) == 2
    assert len(found) == 2


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2), ("mps", 1), ("xpu", 1)])
def test_gpus_of_any_kind_are_listed(
    kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "visible_gpus", lambda: [A100] * count)
    monkeypatch.setattr(devices, "gpus_here", lambda: {kind: count})
    monkeypatch.setattr(devices, "software", str)
    monkeypatch.setattr(checks, "_gpu", lambda device: Check("ok", str(device), ""))
    found = [check.name for check in checks.gpus(Config())]
    assert found == [*(f"{kind}:{number}" for number in range(count)), "versions"]
