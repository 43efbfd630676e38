"""A run's best model for use without gnntrain: the command `export`."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from jinja2 import Environment, PackageLoader, StrictUndefined

from gnntrain import __version__
from gnntrain.atomic_io import atomic_folder
from gnntrain.config import FilesConfig, ModelConfig, PluginConfig, from_dict
from gnntrain.config.graph_spec import NODE_KEYS
from gnntrain.data.summary import from_plain
from gnntrain.data.values import MISSING_MARKS
from gnntrain.devices import alone_in_process
from gnntrain.errors import RunError, UserError
from gnntrain.models import AnyModel, PlainModel, build_model, plain
from gnntrain.models.conv import PyGModel, call
from gnntrain.models.embedding import num_parameters
from gnntrain.paths import expanded
from gnntrain.plugins import MODELS, find_plugin
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.text import fence, format_metric, markdown, shown_path
from gnntrain.results import prepare
from gnntrain.run_store import ModelSignature, model_signature
from gnntrain.training.checkpoint import epoch_of, load_checkpoint, load_weights
from gnntrain.training.records import json_safe

_FORMAT = 1
_MODEL_PY = '''"""{title} Needs {needs}."""

{imports}
{copied}

def load(path=Path(__file__).with_name("model.pt")):
    """The trained model, ready to predict."""
{make}
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
{hook}    return model.eval()
'''


@dataclass(frozen=True)
class Export:
    """What was written: the folder, the class or function that makes the model, as it is imported,
    and the run, as a person would type it."""

    path: Path
    made_with: str
    run: str


@alone_in_process()
def export(run_dir: str | Path, out: str | Path | None = None) -> Export:
    """Write a run's best model as a plain PyG model.

    The folder holds `model.pt` (the weights by PyG's names, read with `weights_only=True`),
    `model.py` (a `load()` that needs torch and PyG, or the package of a plug-in model),
    `model.json` and `README.md` (what the model is, on what it was trained, how well it does, how
    to use it).

    Args:
        run_dir: The run: a directory, a name under `runs/`, or `latest`.
        out: The folder, which must not be there yet, or empty; None: `export` in the run directory.

    Raises:
        UserError: PyG has no such model, or the folder holds something.
        RunError: It cannot be written.
    """
    run = RunDirectory.open(run_dir)
    path = run.path / "export" if out is None else expanded(out).absolute()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(
            f"{shown_path(path)} is there already; nothing was overwritten.",
            "Give another folder with --out DIR, or remove it first.",
        )
    config = from_dict(run.config(), saved=True)
    signature = model_signature(run)
    checkpoint = run.best_checkpoint()
    state = load_checkpoint(checkpoint)
    model = build_model(config.model, signature.schema, signature.num_outputs)
    load_weights(model, state, checkpoint)
    made = _pyg_model(config.model, model, signature)
    made_with, package = f"{made.module}.{made.name}", made.module.partition(".")[0]
    summary, plain = run.summary() or {}, _without_places(config.to_dict())
    preparation = ("to_undirected", "add_self_loops", "normalize_features", "feature_dtype")
    about = {
        "format": _FORMAT,
        "model": config.model.name,
        "made_with": made_with,
        "arguments": made.arguments,
        "own_package": None if package == "torch_geometric" else package,
        "takes": ", ".join(
            n for n in made.inputs if signature.has_edge_weight or n != "edge_weight"
        ),
        "num_parameters": num_parameters(model),
        **signature.to_dict(),
        "num_outputs": signature.num_outputs,
        "preparation": {key: plain["dataset"][key] for key in preparation},
        "run": run.name,
        "best_epoch": epoch_of(state, checkpoint),
        "data": summary.get("data") or {},
        "metrics": {split: summary.get(split) or {} for split in ("train", "val", "test")},
        "positive_class": summary.get("positive_class"),
        "estimated": summary.get("estimated"),
        "versions": {
            "gnntrain": __version__,
            "torch": torch.__version__,
            "torch_geometric": version("torch-geometric"),
        },
        "config": plain,
    }
    source = _model_py(made, config.model.name, signature)
    texts = {
        "model.py": source,
        "model.json": json.dumps(json_safe(about), indent=2, ensure_ascii=False) + "\n",
        "README.md": _model_card(about, source),
    }
    try:
        with atomic_folder(path) as draft:
            for name, text in texts.items():
                (draft / name).write_text(text, encoding="utf-8")
            weights = {name: weight.detach() for name, weight in made.weights.items()}
            torch.save(weights, draft / "model.pt")
    except (OSError, RuntimeError) as error:  # torch's writer tells a full disk as a RuntimeError
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise RunError(
            f"{shown_path(path)} could not be written: {reason}.",
            "Free some space there, or give another folder with --out DIR.",
        ) from error
    return Export(path, made_with, run.shown)


def _pyg_model(config: ModelConfig, model: AnyModel, signature: ModelSignature) -> PyGModel:
    if not isinstance(model, PlainModel):
        # Not what a base class says: the subclass of a plug-in computes something else.
        cls = type(model)
        if not cls.__module__.startswith("gnntrain.models.") and "pyg_model" not in vars(cls):
            raise UserError(
                f"model {config.name} derives from gnntrain's GNN: it needs gnntrain to run.",
                "`gnntrain predict` uses it as it is.",
            )
        return model.pyg_model()
    assert isinstance(config, PluginConfig)  # as its package makes it
    point, schema, options = find_plugin(MODELS, config.name), model.schema, dict(config.options)
    first, inputs, more = repr(signature.num_features), ("x", "edge_index"), ""
    weights = model.module.state_dict()
    if schema is not None:
        fields = {**vars(schema), "node_types": schema.node_types}
        first, inputs = f"types.SimpleNamespace(**{fields})", ("x_dict", "edge_index_dict")
        tables = {t: tuple(table.weight.shape) for t, table in model.tables.items()}
        more = f"\nmodel = WithTables(model, {schema.target!r}, {tables})"
        weights = model.state_dict()
    made = call(point.attr, first, repr(signature.num_outputs), **options)
    return PyGModel(point.attr, weights, f"model = {made}{more}", options, inputs, point.module)


def _model_py(model: PyGModel, name: str, signature: ModelSignature) -> str:
    """A Python file whose `load()` returns the model with its weights. Where features are more than
    a table's columns in order, its `prepare` makes them."""
    package, hook = model.module.partition(".")[0], ""
    is_pyg = package == "torch_geometric"
    imports = {"from pathlib import Path", "import torch"}
    if not is_pyg:
        imports.add(f"from {model.module} import {model.name}")
    if "pyg." in model.code:
        imports.add("import torch_geometric.nn as pyg")
    copied = ["WithTables"] if "model = WithTables(" in model.code else []
    if is_pyg and "model = Layers(" in model.code:
        copied = ["LayerTypes", "Layers", *["TypedConv"] * ("TypedConv(" in model.code)]
    sources, scale = [inspect.getsource(getattr(plain, n)) for n in copied], signature.target_scale
    if scale is not None:
        sources.append(inspect.getsource(plain.in_units))
        units = f"in_units(mean={scale.mean}, std={scale.std})"
        hook = f"    model.register_forward_hook({units})\n"
    heads = [inspect.getsource(plain)] if sources else []
    preprocessing = signature.preprocessing
    if not all(part.is_identity for part in preprocessing.values()):
        heads.append(inspect.getsource(prepare))
        sources += [f"MISSING_MARKS = {MISSING_MARKS}\n", heads[-1].split("\n\n\n", 1)[1]]
    for head in heads:  # a copied file's imports, but those of gnntrain
        for line in head.split("\n\n\n", 1)[0].splitlines():
            if line.startswith(("from ", "import ")) and " gnntrain" not in line:
                imports.add(line.partition("  #")[0])
    # One file's names from a module may begin another's.
    imports -= {one for one in imports for other in imports if other.startswith(f"{one},")}
    title = f"{name} trained on {signature.dataset} with gnntrain {__version__}."
    return _MODEL_PY.format(
        title=title[0].upper() + title[1:],
        needs="torch and torch_geometric only" if is_pyg else f"torch and {package}",
        imports="\n".join(sorted(imports, key=lambda line: ("__future__" not in line, line))),
        copied="".join(f"\n\n{source}" for source in sources),
        make=textwrap.indent(model.code, " " * 4),
        hook=hook,
    )


def _model_card(about: Mapping[str, Any], source: str) -> str:
    """The text of `README.md`, of the content of `model.json` and `model.py`."""
    environment = Environment(
        loader=PackageLoader("gnntrain.results"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
        undefined=StrictUndefined,
    )

    def shown(names: Sequence[Any]) -> str:
        return ", ".join(map(markdown, names[:50])) + ", …" * (len(names) > 50)

    environment.filters |= {"metric": format_metric, "shown": shown}
    environment.filters |= {"plain": markdown, "fence": fence}
    return environment.get_template("card.md.j2").render(
        about,
        names=list(dict.fromkeys(name for found in about["metrics"].values() for name in found)),
        read=from_plain(about["data"]),
        source=source.rstrip(),
        yaml=yaml.safe_dump(about["config"], sort_keys=False, allow_unicode=True).rstrip(),
    )


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration for others to read: no path of this machine, of files their names."""
    dataset, trainer = dict(config["dataset"]), dict(config["trainer"])
    for key in ("root", "store_dir"):
        dataset.pop(key, None)
    for key in ("data", "schema", "edges", "features", "labels", "split"):
        if isinstance(dataset.get(key), str):
            dataset[key] = Path(dataset[key]).name
    if dataset.get("schema") is not None:  # defaults, which it replaces by type: see `data`
        defaults = FilesConfig().model_dump(mode="json")
        for key in NODE_KEYS:
            if key in defaults and dataset[key] == defaults[key]:
                del dataset[key]
    if trainer["init_from"] is not None:
        trainer["init_from"] = Path(trainer["init_from"]).name
    rest = {key: section for key, section in config.items() if key not in ("dataset", "run")}
    return {"dataset": dataset, **rest, "trainer": trainer}
