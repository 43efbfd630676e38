"""The house's one rule of direction: imports go downward only. And what loads runs no code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "gnntrain"

# From the bottom up; a room may import itself and what stands before it.
FLOORS = [
    ["errors", "limits"],
    ["devices"],
    ["__init__", "jit", "groups", "phases", "paths", "atomic_io", "startup"],
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
    ["worker", "failures", "inference"],
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


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def trees() -> Iterator[tuple[Path, ast.AST]]:
    """Every module, parsed."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def test_imports_go_downward_only() -> None:
    for path, tree in trees():
        room = room_of(path)
        for name in imports(tree):
            parts = name.split(".")
            if parts[0] == "gnntrain":
                other = parts[1] if len(parts) > 1 else "__init__"
                assert other == room or FLOOR[other] < FLOOR[room], f"{path} imports {name}"
            elif parts[0] in EDGE_ONLY:
                assert room in EDGE_ONLY[parts[0]], f"{path} imports {name}"


def test_files_are_loaded_without_code() -> None:
    for path, tree in trees():
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        assert not read & {"__import__", "compile", "eval", "exec"}, path
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name, given = ast.unparse(call.func), [ast.unparse(key) for key in call.keywords]
            if name.endswith(("np.load", "read_array")):
                assert "allow_pickle=False" in given, path
            elif name == "torch.load":
                assert "weights_only=True" in given, path
