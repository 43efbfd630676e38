"""The documentation is built without a warning, is up to date, and its commands can be typed."""

from __future__ import annotations

import ast
import csv
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnntrain.app import compose_config
from gnntrain.commands import COMMANDS
from gnntrain.config import ConfigError
from scripts.config_reference import KEYS, PAGE, listed, page
from tests.processes import ROOT, python

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MACHINE_KEYS = {"trainer.gpus", "trainer.cuda_graph", "sampler.topology", "features.placement"}
"""What only a machine with GPUs accepts."""


def commands() -> list[tuple[str, str]]:
    """Every command line in the pages' shell blocks that starts a run."""
    found = []
    for file in PAGES:
        if file.name == "extending.md":  # test_extending.py runs it, with its package installed
            continue
        for block in re.findall(r"```bash\n(.*?)```", file.read_text(encoding="utf-8"), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                text = line.split("#")[0].strip().removeprefix("$ ")
                if text.startswith("gnntrain "):
                    found.append((file.name, text))
    return found


def test_the_page_and_the_list_of_keys_are_the_schemas() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.config_reference"
    assert KEYS.read_text(encoding="utf-8") == listed(), "run python -m scripts.config_reference"


@pytest.mark.parametrize(("file", "command"), commands())
def test_commands_in_the_pages_can_be_typed(file: str, command: str) -> None:  # noqa: ARG001
    words = shlex.split(command)[1:]
    if words[0].startswith("-") or (words[0] in COMMANDS and words[0] not in ("train", "plan")):
        return  # judged by the command itself, about a run that is not there
    try:
        compose_config([word for word in words if "=" in word])
        wrong = set()
    except ConfigError as error:
        wrong = {problem.key for problem in error.problems}
    here = {key for key in wrong if key.startswith("dataset.") and "dataset=files" in words}
    assert wrong <= MACHINE_KEYS | here


def said(tree: ast.AST) -> Iterator[str]:
    """Every text of a module but its docstrings; what is put into it is `…`."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "" if id(node) in documented else node.value


def test_the_messages_of_the_page_about_trouble_are_those_of_the_program() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`", page, re.M)
    assert len(messages) > 10
    trees = [ast.parse(file.read_text("utf-8")) for file in (ROOT / "gnntrain").rglob("*.py")]
    texts = "\n".join(text.replace("\n", " ") for tree in trees for text in said(tree))
    for message in messages:
        assert len(re.findall(r"\w", message)) >= 6, message
        pattern = ".*".join(map(re.escape, message.split("…")))
        assert re.search(pattern, texts), message


@pytest.mark.slow
def test_the_page_about_own_data_works_when_it_is_typed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    section = page.split("## Your own data")[1].split("## Which file")[0]
    program, *shell = re.findall(r"```(?:python|bash)\n(.*?)```", section, re.S)
    # Customers that nobody knows yet: some of the table's first, without their kind.
    new = """
customers.drop(columns="kind").iloc[:50, ::-1].to_csv("new.csv", index=False)
first = set(customers["customer"][:50])
among = edges[edges["source"].isin(first) & edges["target"].isin(first)]
among.to_csv("new-edges.csv", index=False)
"""
    run_typed(tmp_path, program + new, "\n".join(shell))
    customers, kinds = read_rows(tmp_path / "customers.csv"), read_rows(tmp_path / "kinds.csv")
    assert [row["node"] for row in kinds] == [row["customer"] for row in customers]
    assert {row["class"] for row in kinds} == {"business", "private"}
    known = [(row["kind"], kind["class"]) for row, kind in zip(customers, kinds, strict=True)]
    known = [pair for pair in known if pair[0]]
    assert sum(given == found for given, found in known) > 0.8 * len(known)
    assert len(read_rows(tmp_path / "new-kinds.csv")) == 50


@pytest.mark.slow
def test_the_page_about_typed_graphs_works_when_it_is_typed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "typed-graphs.md").read_text(encoding="utf-8")
    section = page.split("## From two tables")[1].split("## The schema")[0]
    program, shell = re.findall(r"```(?:python|bash)\n(.*?)```", section, re.S)
    truth = """
truth = np.array(["private", "business", "school"])[kind]
pd.DataFrame({"customer": customers["customer"], "kind": truth}).to_csv("truth.csv", index=False)
"""
    run_typed(tmp_path, program + truth, shell)
    truths, kinds = read_rows(tmp_path / "truth.csv"), read_rows(tmp_path / "kinds.csv")
    assert [row["node"] for row in kinds] == [row["customer"] for row in truths]
    right = sum(a["kind"] == b["class"] for a, b in zip(truths, kinds, strict=True))
    assert right > 0.85 * len(truths)


def run_typed(folder: Path, program: str, shell: str) -> None:
    """Run a page's program, then its commands, in a folder."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    for command in ([sys.executable, "-c", program], ["bash", "-e", "-c", shell]):
        typed = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert typed.returncode == 0, typed.stderr


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow  # of what .[test] does not install
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    words = ["-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path]
    built = python(*words, folder=ROOT, env={"NO_MKDOCS_2_WARNING": "1"})
    assert (built.returncode, built.stdout) == (0, ""), built.stderr
    assert (tmp_path / "tutorials" / "glt-distributed" / "index.html").is_file()
