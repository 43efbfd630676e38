"""`model.py` of an exported model: Python that makes the PyG model and loads its weights."""

from __future__ import annotations

import inspect
import textwrap
from types import ModuleType

from gnntrain.data.preprocessing import AnyPreprocessing, by_node_type
from gnntrain.data.targets import TargetScale
from gnntrain.data.values import MISSING_MARKS
from gnntrain.models import plain
from gnntrain.models.pyg_model import PyGModel
from gnntrain.results import prepare

_SOURCE = '''"""{title} Needs {needs}."""

{imports}
{copied}

def load(path=Path(__file__).with_name("model.pt")):
    """The trained model, ready to predict."""
{make}
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
{hook}    return model.eval()
'''


def model_source(
    model: PyGModel,
    title: str,
    preprocessing: AnyPreprocessing | None = None,
    scale: TargetScale | None = None,
) -> str:
    """A Python file whose `load()` returns the model with its weights.

    Args:
        model: How it is made.
        title: A sentence for the file's docstring.
        preprocessing: What makes features of a user's columns, of a typed graph by node type.
            Where it is more than their order, `prepare(columns)`, or of a typed graph
            `prepare(columns, node_type)`, does it.
        scale: How the outputs of a regression become quantities; None: of classes.
    """
    imports = {"from pathlib import Path", "import torch"}
    if model.imports:
        imports.add(f"from {model.module} import {', '.join(sorted({*model.imports}))}")
    sources = [*map(inspect.getsource, model.copied)]
    if scale is not None:
        sources.append(inspect.getsource(plain.in_units))
    if sources:
        imports |= _imports(plain)
    if not all(part.is_identity for part in by_node_type(preprocessing).values()):
        imports |= _imports(prepare)
        body = inspect.getsource(prepare).split("\n\n\n", 1)[1]
        sources += [f"MISSING_MARKS = {MISSING_MARKS}\n", body]
    own = model.own_package
    units = "" if scale is None else f"in_units(mean={scale.mean}, std={scale.std})"
    return _SOURCE.format(
        title=title,
        needs="torch and torch_geometric only" if own is None else f"torch and {own}",
        imports="\n".join(sorted(imports, key=lambda line: ("__future__" not in line, line))),
        copied="".join(f"\n\n{source}" for source in sources),
        make=textwrap.indent(model.code, " " * 4),
        hook=f"    model.register_forward_hook({units})\n" if units else "",
    )


def _imports(module: ModuleType) -> set[str]:
    """The imports of a copied file, but those of gnntrain."""
    head = inspect.getsource(module).split("\n\n\n", 1)[0]
    return {
        line
        for line in head.splitlines()
        if line.startswith(("from ", "import ")) and " gnntrain" not in line
    }
