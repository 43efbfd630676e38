"""Classes as their source declares them: keyword arguments with types, defaults and meanings.

The source is parsed, not imported: a model's file imports torch, which takes seconds, and a
configuration is judged without it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_ARGUMENT = re.compile(r" {4}(?P<name>\w+): (?P<meaning>.*)")


@dataclass(frozen=True)
class Argument:
    """A keyword-only argument of a class.

    Attributes:
        name: As it is passed.
        annotation: As it is written.
        default: Its value.
        meaning: From the section `Args:` of the class's docstring; empty where it is not there.
    """

    name: str
    annotation: str
    default: object
    meaning: str


@dataclass(frozen=True)
class ClassSource:
    """A class that gives its file the name: `GATv2` in `gatv2.py`.

    Attributes:
        name: Of the class.
        summary: First line of the file's docstring.
        arguments: The keyword-only arguments of `__init__`.
        passes_on: Whether `__init__` takes `**keywords` too, for its base class.
        constants: Attributes of the class that are plain values, such as `uses_graph = False`.
    """

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    passes_on: bool
    constants: Mapping[str, Any]


def read_class(file: Path) -> ClassSource:
    """Parse the class that is named as its file, but for upper and lower case.

    A class without an `__init__` has the arguments and constants of its first base class, which
    has a file of its own in the same folder: `GAT` in `gat.py`.

    Raises:
        OSError: The file, or that of the base class, cannot be read.
        ValueError: There is no such class, or one of its keyword-only arguments has no annotation,
            or no default that is a plain value.
    """
    module = ast.parse(file.read_text(encoding="utf-8"))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    found = next((node for node in classes if node.name.lower() == file.stem), None)
    if found is None:
        raise ValueError(f"{file} defines no class {file.stem!r}, in whichever case")
    summary, constants = (ast.get_docstring(module) or "").partition("\n")[0], _constants(found)
    functions = (node for node in found.body if isinstance(node, ast.FunctionDef))
    init = next((function for function in functions if function.name == "__init__"), None)
    if init is None:
        base = read_class(file.with_name(f"{ast.unparse(found.bases[0]).lower()}.py"))
        constants = {**base.constants, **constants}
        return replace(base, name=found.name, summary=summary, constants=constants)
    meanings = _meanings(ast.get_docstring(found) or "")
    pairs = zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
    return ClassSource(
        found.name,
        summary,
        tuple(_argument(file, arg, default, meanings) for arg, default in pairs),
        init.args.kwarg is not None,
        constants,
    )


def _argument(
    file: Path, arg: ast.arg, default: ast.expr | None, meanings: Mapping[str, str]
) -> Argument:
    value = None if default is None else _value(default)
    if arg.annotation is None or value is None:
        raise ValueError(f"{file}: the argument {arg.arg} needs an annotation and a plain default")
    return Argument(arg.arg, ast.unparse(arg.annotation), *value, meanings.get(arg.arg, ""))


def _value(node: ast.expr) -> tuple[Any] | None:
    """A plain value; None of an expression that would have to be computed."""
    try:
        return (ast.literal_eval(node),)
    except ValueError:
        return None


def _constants(node: ast.ClassDef) -> dict[str, Any]:
    """The attributes of a class that are plain values."""
    found: dict[str, Any] = {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                pass
            case _:
                continue
        if (plain := _value(value)) is not None:
            found[name] = plain[0]
    return found


def _meanings(docstring: str) -> dict[str, str]:
    """What a Google-style docstring says of each argument, by name."""
    _, _, section = docstring.partition("\nArgs:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        match = _ARGUMENT.fullmatch(line)
        if match:
            name = match["name"]
            found[name] = match["meaning"]
        elif name and line.startswith(" " * 8):
            found[name] += " " + line.strip()
        else:
            name = ""
            if line and not line.startswith(" "):  # the next section
                break
    return found
