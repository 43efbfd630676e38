"""A run's best model for use without gnntrain: the command `export`."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, version
from pathlib import Path
from pprint import pformat
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
from gnntrain.errors import TransientError, UserError
from gnntrain.models import AnyModel, PlainModel, build_model, plain
from gnntrain.models.embedding import num_parameters
from gnntrain.paths import expanded
from gnntrain.plugins import MODELS, find_plugin
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.reporting.text import format_metric, shown_path
from gnntrain.results import prepare
from gnntrain.run_store import ModelSignature, model_signature
from gnntrain.training.checkpoint import load_checkpoint, load_weights
from gnntrain.training.records import json_safe

_FORMAT = 1
_LOAD = '''
from pathlib import Path


def load(path=Path(__file__).with_name("model.pt")):
    """The trained model, ready to predict."""
{make}
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
{hook}    return model.eval()
'''


@dataclass(frozen=True)
class Export:
    """What was written: the folder, the model's name or, of a plug-in, what makes it, and the run,
    as a person would type it."""

    path: Path
    made_with: str
    run: str


@alone_in_process()
def export(run_dir: str | Path, out: str | Path | None = None) -> Export:
    """Write a run's best model for use with torch and PyG alone.

    The folder holds `model.pt` (the weights, read with `weights_only=True`), `model.py`
    (`models/plain.py` and a `load()`, which needs the package of a plug-in model),
    `model.json` and `README.md` (what the model is, on what it was trained, how well it does, how
    to use it).

    Args:
        run_dir: The run: a directory, a name under `runs/`, or `latest`.
        out: The folder, which must not be there yet, or empty; None: `export` in the run directory.

    Raises:
        UserError: The model needs gnntrain, or the folder holds something.
        TransientError: It cannot be written.
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
    source, point = _model_py(config.model, model, signature)
    made_with = config.model.name if point is None else f"{point.module}.{point.attr}"
    inputs = ["x", "edge_index"][: 1 + model.uses_graph]
    if model.is_hetero:
        inputs = ["x_dict", "edge_index_dict"]
    elif model.needs.weight and signature.has_edge_weight:
        inputs.append("edge_weight")
    summary, plain = run.summary() or {}, _without_places(config.to_dict())
    preparation = ("to_undirected", "add_self_loops", "normalize_features", "feature_dtype")
    about = {
        "format": _FORMAT,
        "model": config.model.name,
        "made_with": made_with,
        "own_package": point and point.module.partition(".")[0],
        "takes": ", ".join(inputs),
        "num_parameters": num_parameters(model),
        **signature.to_dict(),
        "num_outputs": signature.num_outputs,
        "preparation": {key: plain["dataset"][key] for key in preparation},
        "run": run.path.name,
        "best_epoch": state["epoch"],
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
    texts = {
        "model.py": source,
        "model.json": json.dumps(json_safe(about), indent=2, ensure_ascii=False) + "\n",
        "README.md": _model_card(about),
    }
    try:
        with atomic_folder(path) as draft:
            for name, text in texts.items():
                (draft / name).write_text(text, encoding="utf-8")
            is_wrapped = isinstance(model, PlainModel) and not model.is_hetero
            weights = (model.module if is_wrapped else model).state_dict()  # type: ignore[union-attr]
            torch.save(weights, draft / "model.pt")
    except (OSError, RuntimeError) as error:  # torch's writer tells a full disk as a RuntimeError
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise TransientError(
            f"{shown_path(path)} could not be written: {reason}.",
            "Free some space there, or give another folder with --out DIR.",
        ) from error
    return Export(path, made_with, run.shown)


def _model_py(
    config: ModelConfig, model: AnyModel, signature: ModelSignature
) -> tuple[str, EntryPoint | None]:
    """The text of `model.py`: `plain.py`; where features are more than a table's columns in order,
    `prepare.py`; and `load`. Of a plug-in's plain model also the entry point."""
    point, hook, sources = None, "", [inspect.getsource(plain).partition("\n")[2]]
    if isinstance(model, PlainModel):  # as its package makes it
        assert isinstance(config, PluginConfig)
        point, schema = find_plugin(MODELS, config.name), model.schema
        first, after = repr(signature.num_features), ""
        if schema is not None:
            first = _namespace({**vars(schema), "node_types": schema.node_types})
            tables = {t: tuple(table.weight.shape) for t, table in model.tables.items()}
            after = f"\nmodel = WithTables(model, {schema.target!r}, {tables})"
        make = _call(point.attr, first, repr(signature.num_outputs), **config.options) + after
        make = f"from {point.module} import {point.attr}\nmodel = {make}"
    else:
        # A subclass of another package may compute something else.
        cls, layers = type(model), {type(conv) for conv in model.convs}
        is_ours = all(of.__module__.startswith("gnntrain.models.") for of in (cls, *layers))
        names = [of.__name__ for of in layers.pop().__mro__ if of.__module__ == plain.__name__]
        if layers or not names or not (is_ours or vars(cls).get("is_plain")):
            raise UserError(
                f"model {config.name} derives from gnntrain's GNN: it needs gnntrain to run.",
                "`gnntrain predict` uses it as it is.",
            )
        arguments = names[0], _namespace(vars(model.schema)), f"{model.out_channels}"
        make = f"model = {_call('Layers', *arguments, **model.options)}"
    preprocessing, scale = signature.preprocessing, signature.target_scale
    if not all(part.is_identity for part in preprocessing.values()):
        needed = f"MISSING_MARKS = {MISSING_MARKS}\n"
        of_marks = "from gnntrain.data.values import MISSING_MARKS\n"
        source = inspect.getsource(prepare).replace(of_marks, needed)
        sources.append(source.partition("import annotations\n")[2])
    if scale is not None:
        units = f"in_units(mean={scale.mean}, std={scale.std})"
        hook = f"    model.register_forward_hook({units})\n"
    needs = "torch and torch_geometric"
    if point is not None:
        needs = f"torch, torch_geometric and {point.module.partition('.')[0]}"
    title = f"{config.name} trained on {signature.dataset} with gnntrain {__version__}."
    title = f'"""{title[0].upper()}{title[1:]} Needs {needs}."""\n'
    load = _LOAD.format(make=textwrap.indent(make, " " * 4), hook=hook)
    return "\n".join([title, *sources]) + load, point


def _namespace(fields: Mapping[str, Any]) -> str:
    return f"SimpleNamespace(**{pformat(fields, sort_dicts=False)})"


def _call(name: str, *arguments: str, **keywords: Any) -> str:
    values = (f"{key}={pformat(value, sort_dicts=False)}" for key, value in keywords.items())
    return f"{name}({', '.join([*arguments, *values])})"


def _model_card(about: Mapping[str, Any]) -> str:
    """The text of `README.md`, of the content of `model.json`."""
    environment = Environment(
        loader=PackageLoader("gnntrain.results"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
        undefined=StrictUndefined,
    )

    def shown(names: Sequence[Any]) -> str:
        return ", ".join(map(_markdown, names[:50])) + ", …" * (len(names) > 50)

    environment.filters |= {"metric": format_metric, "shown": shown}
    environment.filters |= {"plain": _markdown, "fence": _fence}
    return environment.get_template("card.md.j2").render(
        about,
        names=list(dict.fromkeys(name for found in about["metrics"].values() for name in found)),
        read=from_plain(about["data"]),
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


def _markdown(text: object) -> str:
    """Text in which no character is a mark of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(str(text).split()))


def _fence(text: str) -> str:
    """Backticks, more than there are in a row in a text."""
    return "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
