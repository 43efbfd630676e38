"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnntrain.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for word, text in fenced if word == language]


def test_the_mistakes_it_shows_are_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [block for block in blocks("") if block.startswith("$ gnntrain modle")]
    command, _, expected = shown.partition("\n")
    assert main(command.split()[2:]) == 2
    assert capsys.readouterr().err.strip() == expected.strip()


@pytest.mark.usefixtures("here")
def test_its_python_example_runs() -> None:
    (example,) = blocks("python")
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(example, "README.md", "exec"), names)
    assert 0 < float(str(names["accuracy"])) <= 1


def test_every_recipe_and_document_it_names_exists() -> None:
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / link).is_file(), link
    for name in re.findall(r"experiment=(\w+)", README):
        assert (root / "conf" / "experiment" / f"{name}.yaml").is_file(), name
