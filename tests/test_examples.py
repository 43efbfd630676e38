"""The notebook and the page about Python run as they stand, each in a fresh process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.processes import ROOT, python

NOTEBOOK = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())


def run(code: str, folder: Path) -> str:
    """Runs a script without `if __name__ == "__main__"` in a folder; what it printed."""
    (folder / "script.py").write_text(code)
    env = {"XDG_CACHE_HOME": str(folder / "cache"), "MPLBACKEND": "agg"}
    done = python("script.py", folder=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = ["".join(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "code"]
    said = run("\n".join(cells), tmp_path)
    (reached,) = re.findall(r"reached (\d\.\d+), best", said)
    (again,) = re.findall(r"accuracy again: (\d\.\d+)", said)
    assert float(reached) > 0.5
    assert float(again) == pytest.approx(float(reached), abs=6e-4)
    assert "embeddings: (2000, 32)" in said
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert rows[0] == "node,class,probability"
    assert len(rows) - 1 == 400
    assert len(list((tmp_path / "runs").glob("data-sage-*"))) == 2


def test_the_notebook_is_kept_without_outputs() -> None:
    assert NOTEBOOK["nbformat"] == 4
    for cell in NOTEBOOK["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_the_page_about_python_runs_and_has_the_calls_it_names(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(examples) == 4
    calls = re.findall(r"`(gnntrain\.[\w.]+)`: (.*) \|", page)
    names = [
        f"from {module} import {name}" for module, s in calls for name in re.findall(r"`(\w+)\(", s)
    ]
    assert len(names) == 12
    checks = [
        "assert summary['test']['accuracy'] > 0.3 and accuracy > 0.3",
        "assert (slower.trainer.lr, slower.model.dropout) == (0.003, 0.5)",
        "assert slower.model.name == 'sage'",
        "assert float(loss.detach()) < 1.3",  # four classes: 1.386 by guessing
    ]
    said = run("\n".join([*examples, *checks, *names]), tmp_path)
    assert "trainer.lr=-1" in said
    assert "trainer.epoch=10" in said


@pytest.mark.slow
def test_the_page_about_python_has_the_types_it_needs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "script.py").write_text("\n".join([*examples, "reveal_type(summary)"]))
    options = ["--ignore-missing-imports", "--follow-imports=silent", "--config-file="]
    words = ["-m", "mypy", *options, "script.py"]
    checked = python(*words, folder=tmp_path, env={"MYPYPATH": str(ROOT)})
    assert checked.returncode == 0, checked.stdout
    assert re.search(r'Revealed type is "\S*dict\[\S*str, Any\]"', checked.stdout)
