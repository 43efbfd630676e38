"""The list of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.inventory import model_rows
from tests.packages import install


def test_models_are_listed_with_their_parameters() -> None:
    rows = {row[0]: row for row in model_rows()}
    assert rows["sage"][2] == f"{2 * 100 * 128 + 128 + 2 * 128 * 47 + 47:,}"
    assert rows["mlp"][2] == f"{100 * 128 + 128 + 128 * 47 + 47:,}"
    assert "GraphSAGE" in rows["sage"][1]


def test_models_of_installed_packages_are_listed_but_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = """
        [gnntrain.models]
        their_net = listed_package:Net
    """
    install(tmp_path, monkeypatch, "listed_package", "raise RuntimeError", points)
    (model,) = [row for row in model_rows() if row[0] == "their_net"]
    assert "model=their_net" in model[1]
