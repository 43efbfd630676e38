"""A model's keys, as the source of its class declares them.

The source is parsed, not imported: a model's file imports torch, which takes seconds, and a
configuration is judged without it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ClassSource:
    """A class that gives its file the name: `GATv2` in `gatv2.py`; underscores do not count.

    Attributes:
        name: Of the class.
        summary: First line of the file's docstring.
        docstring: Of the class; of its base class where that has the arguments.
        arguments: (annotation, default) of each keyword-only argument of `__init__`.
        passes_on: Whether `__init__` takes `**keywords` too, for its base class.
        constants: Attributes of the class that are plain values, such as `uses_graph = False`.
    """

    name: str
    summary: str
    docstring: str
    arguments: Mapping[str, tuple[str, Any]]
    passes_on: bool
    constants: Mapping[str, Any]


def read_class(file: Path) -> ClassSource:
    """Parse the class that is named as its file, but for upper and lower case and underscores.

    A class without an `__init__` has the arguments and constants of its first base class, which
    has a file of its own in the same folder: `GAT` in `gat.py`.

    Raises:
        OSError: The file, or that of the base class, cannot be read.
        ValueError: There is no such class, or one of its keyword-only arguments has no annotation,
            or no default that is a plain value.
    """
    module = ast.parse(file.read_text(encoding="utf-8"))
    classes = {node.name.lower(): node for node in module.body if isinstance(node, ast.ClassDef)}
    name = file.stem.replace("_", "")
    if name not in classes:
        raise ValueError(f"{file} defines no class {name!r}, in whichever case")
    found = classes[name]
    summary, constants = (ast.get_docstring(module) or "").partition("\n")[0], _constants(found)
    functions = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    if "__init__" not in functions:
        base = read_class(file.with_name(f"{ast.unparse(found.bases[0]).lower()}.py"))
        constants = {**base.constants, **constants}
        return replace(base, name=found.name, summary=summary, constants=constants)
    arguments = functions["__init__"].args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return ClassSource(
        found.name,
        summary,
        ast.get_docstring(found) or "",
        {arg.arg: _declared(file, arg, default) for arg, default in pairs},
        arguments.kwarg is not None,
        constants,
    )


def _declared(file: Path, arg: ast.arg, default: ast.expr | None) -> tuple[str, Any]:
    try:
        if arg.annotation is not None and default is not None:
            return ast.unparse(arg.annotation), ast.literal_eval(default)
    except ValueError:  # the default would have to be computed
        pass
    raise ValueError(f"{file}: the argument {arg.arg} needs an annotation and a plain default")


def _constants(node: ast.ClassDef) -> dict[str, Any]:
    """The attributes of a class that are plain values."""
    found: dict[str, Any] = {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.expr() as value):
                pass
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                pass
            case _:
                continue
        with suppress(ValueError):  # it would have to be computed
            found[name] = ast.literal_eval(value)
    return found
