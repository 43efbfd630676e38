"""The house's one rule of direction: imports go downward only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gnntrain"

# From the bottom up; a room may import itself and what stands before it.
FLOORS = [
    ["errors", "limits"],
    ["devices"],
    [
        "__init__",
        "jit",
        "groups",
        "phases",
        "paths",
        "atomic_io",
        "startup",
    ],
    ["plugins"],
    ["metrics"],
    ["config"],
    ["compute"],
    ["distributed"],
    ["data"],
    ["sampling"],
    ["loading"],
    ["models"],
    ["tasks"],
    ["training"],
    ["reporting"],
    ["selfcheck"],
    ["build", "job", "run_store"],
    ["init_from"],
    ["worker", "failures", "inference", "joint_run"],
    ["run", "results", "report"],
    ["preloaded"],
    ["inventory"],
    ["doctor", "planning"],
    ["app"],
    ["sweep"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
EDGE_ONLY = {
    "hydra": {"app", "sweep"},
    "omegaconf": {"app"},
    "rich": {"reporting"},
    "optuna": {"sweep"},
}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield str(node.module)


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downward_only(path: Path) -> None:
    room = room_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "gnntrain":
            other = parts[1] if len(parts) > 1 else "__init__"
            assert other == room or FLOOR[other] < FLOOR[room], f"{room} imports {name}"
        elif parts[0] in EDGE_ONLY:
            assert room in EDGE_ONLY[parts[0]], f"{room} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_never_prints(path: Path) -> None:
    calls = (node for node in nodes(path) if isinstance(node, ast.Call))
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    assert not names & {"print", "eval", "exec"} or room_of(path) in (
        "reporting",
        "cli",
        "commands",
    )


def test_operators_are_registered_without_torchs_compiler() -> None:
    """`torch._dynamo` takes as long to import as torch itself. (PyG imports it, too.)"""
    code = "import gnntrain.compute, sys; print('torch._dynamo' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
