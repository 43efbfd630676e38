"""Lists of models and samplers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.inventory.models import model_rows, sampler_rows
from tests.packages import install


def test_models_are_listed_with_their_parameters() -> None:
    rows = {row[0]: row for row in model_rows()}
    assert rows["sage"][2] == f"{2 * 100 * 128 + 128 + 2 * 128 * 47 + 47:,}"
    assert rows["mlp"][2] == f"{100 * 128 + 128 + 128 * 47 + 47:,}"
    assert "GraphSAGE" in rows["sage"][1]


def test_samplers_say_whether_they_can_be_used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnntrain.inventory.machine.find_spec", lambda _: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [row[-1] for row in sampler_rows()] == ["yes", "no triton", "no pyg-lib", "yes"]


def test_models_and_samplers_of_installed_packages_are_listed_but_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = """
        [gnntrain.models]
        their_net = listed_package:Net
        [gnntrain.samplers]
        their_draws = listed_package:Draws
    """
    install(tmp_path, monkeypatch, "listed_package", "raise RuntimeError", points)
    (model,) = [row for row in model_rows() if row[0] == "their_net"]
    assert "model=plugin model.name=their_net" in model[1]
    (sampler,) = [row for row in sampler_rows() if row[1] == "their_draws"]
    assert "sampler.backend=their_draws" in sampler[2]
