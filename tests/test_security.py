"""No code from data, no shell: what the source may not contain."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gnntrain"

FORBIDDEN_NAMES = ("eval", "exec", "compile", "__import__")
FORBIDDEN_CALLS = (
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("pickle.load", "pickle.loads", "marshal.load", "marshal.loads", "shelve.open"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "joblib.load", "pandas.read_pickle"),
    *("hydra.utils.instantiate", "hydra.utils.get_class", "hydra.utils.call"),
)


def offences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and what is wrong there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = ast.unparse(node)
            if name in FORBIDDEN_NAMES or name in FORBIDDEN_CALLS:
                yield node.lineno, name
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in FORBIDDEN_CALLS:
                    yield node.lineno, f"from {node.module} import {alias.name}"
        if isinstance(node, ast.Call):
            yield from _wrong_arguments(node)


def _wrong_arguments(call: ast.Call) -> Iterator[tuple[int, str]]:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    name = ast.unparse(call.func)
    if given.get("shell", "False") != "False":
        yield call.lineno, f"{name} with a shell"
    if name == "torch.load" and given.get("weights_only") != "True":
        yield call.lineno, "torch.load without weights_only=True"
    if name.endswith(("np.load", "read_array")) and given.get("allow_pickle") != "False":
        yield call.lineno, f"{name} without allow_pickle=False"


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "import builtins; f = eval",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "from pickle import load",
        "pickle.loads(x)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, yaml.Loader)",
        "hydra.utils.instantiate(config)",
    ],
)
def test_the_check_finds(line: str) -> None:
    assert list(offences(ast.parse(line)))


def test_nothing_in_the_package_runs_what_data_says() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 80
    found = [
        f"{file.relative_to(PACKAGE)}:{line}: {what}"
        for file in files
        for line, what in offences(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []
