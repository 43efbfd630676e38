"""Which GPUs are checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gnntrain.errors import RunError
from gnntrain.selfcheck import gpus
from gnntrain.selfcheck.gpus import GPU, kinds_of_gpus


def listed(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "memory_bytes": 2**36, "driver": "570.1"} for name in names]


def test_equal_gpus_are_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", lambda: listed("H100", "H100"))
    assert kinds_of_gpus("cuda") == [GPU("H100", "570.1", "cuda:0")]


@pytest.mark.parametrize("found", [listed("T4", "H100"), []], ids=["two kinds", "no tool"])
def test_where_no_tool_tells_torch_is_asked(
    found: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", lambda: found)
    monkeypatch.setattr(gpus, "_names_from_torch", lambda: ["H100", "H100", "T4"])
    assert [gpu[::2] for gpu in kinds_of_gpus("cuda")] == [("H100", "cuda:0"), ("T4", "cuda:2")]


def test_torch_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(gpus._names_from_torch()) == torch.cuda.device_count()
    monkeypatch.setattr(gpus, "_CODE", "raise SystemExit(1)")
    with pytest.raises(RunError):
        gpus._names_from_torch()
