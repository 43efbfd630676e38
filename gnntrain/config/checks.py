"""From plain data to the schema, with every mistake at once; and which keys of a run may change.

Mistakes that no single key shows: keys that contradict each other, the files, the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnntrain.config.models import PluginConfig
from gnntrain.config.problems import ConfigError, Problem, as_typed, did_you_mean, shown
from gnntrain.config.published import DATASET_NAMES
from gnntrain.config.schema import Config, FilesConfig, TrainerConfig
from gnntrain.config.section import UNKNOWN, judged
from gnntrain.errors import UserError
from gnntrain.limits import available_cores, total_memory
from gnntrain.paths import file_names, is_file

Rules = Mapping[tuple[str, str, str], Mapping[str, str]]
"""By a key, its wrong values and values instead: other keys or facts, with their values beside
which they are wrong. `!a b` are all values but a and b."""

_SERVED = {"distributed.servers": "!0", "distributed.graph": "partitioned"}  # some draw for others
_TYPED = {"a model of typed graphs": "true"}  # the CPU draws, and a GPU caches no rows
_TYPED_ALONE = {"a model of typed graphs, no shared rows": "true"}
_REGRESSION = {"task.type": "node_regression"}
_OF_CLASSES = " ".join(name for name in DATASET_NAMES if name != "files")
_TRITON = ("sampler.backend", "triton", "auto or numba")
_PINNED = ("sampler.topology", "resident pinned", "auto or host")
_PLACED = ("features.placement", "pinned sharded", "auto, resident, cached or memmap")
_GRAPH = ("trainer.cuda_graph", "true", "auto or false")
_TORCH = {"compute.kernels": "torch"}
_BASIC, _OPTUNA = {"sweep=basic": "true"}, "sweep=optuna, since it has no effect"

_CLASHES: Rules = {
    ("sampler.threads", "!0 null", "0 or null"): {"sampler.backend": "pyg"},
    ("sampler.fan_out_scope", "node", "relation"): {"sampler.backend": "pyg"},
    ("sampler.topology", "host", "resident, pinned or auto"): {"sampler.backend": "triton"},
    ("sampler.topology", "resident pinned", "host or auto"): {"sampler.backend": "numba pyg"},
    ("distributed.graph", "sharded", "replicated"): {"sampler.name": "full"},
    ("features.placement", "!auto memmap wholegraph", "auto"): {"distributed.graph": "sharded"},
    ("distributed.servers", "!0", "0"): {"features.placement": "wholegraph"},
    # A CUDA graph replays a step as it was recorded. `model.options` are those of a plug-in.
    _GRAPH: {
        "sampler.name": "full",
        "sampler.backend": "numba pyg",
        "sampler.topology": "host",
        "a fan-out of -1": "true",
        "features.placement": "memmap wholegraph",
        "distributed.graph": "!replicated",
        "model.norm": "batch",
        "model.options": "!",
        "trainer.precision": "fp16",
        "trainer.on_nonfinite": "skip",
        "trainer.compile": "true",
        "trainer.gpus": "!auto 1",
        "distributed.servers": "!0",
        **_TYPED,
        **_TORCH,
    },
    ("sampler.backend", "!auto numba", "auto"): _SERVED,
    ("sampler.topology", "!auto host", "auto"): {**_SERVED, **_TYPED},
    ("sampler.name", "full", "neighbor"): _SERVED,
    ("features.placement", "!auto memmap", "auto"): _SERVED,
    ("sampler.backend", "triton", "auto"): _TYPED,
    ("features.placement", "cached sharded wholegraph", "auto"): _TYPED,
    ("features.cache_ratio", "!null", "null"): _TYPED_ALONE,
    ("features.cache_bytes", "!null", "null"): _TYPED_ALONE,
    ("model.embedding_channels", "!null", "null"): {"model.featureless": "one_hot"},
    ("model.num_bases", "!null", "null"): {"model.num_blocks": "!null"},
    ("trainer.gpus", "!auto 0", "0 or auto"): {"trainer.device": "cpu"},
    ("trainer.gpus", "0", "auto or a number above 0"): {"trainer.device": "!auto cpu"},
    ("trainer.warmup_epochs", "!0", "0"): {"trainer.scheduler": "plateau"},
    ("trainer.precision", "fp16", "bf16 or fp32"): {"trainer.device": "cpu", "trainer.gpus": "0"},
    ("distributed.num_processes", "!1", "1 (each GPU is a rank)"): {"trainer.gpus": "!auto 0"},
    ("dataset.task", "!auto regression", "auto or regression"): _REGRESSION,
    ("dataset.task", "regression", "auto"): {"task.type": "node_classification"},
    ("task.type", "node_regression", "node_classification"): {"dataset.name": _OF_CLASSES},
    ("task.loss", "!mse", "mse, which has no effect,"): {"task.type": "node_classification"},
    ("task.positive_class", "!null", "null"): _REGRESSION,
    ("trainer.label_smoothing", "!0.0", "0"): _REGRESSION,
    ("trainer.class_weights", "!none", "none"): _REGRESSION,
    ("distributed.parts", "!null", "null"): {"distributed.graph": "replicated sharded"},
    ("distributed.parts", "null", "a folder by gnntrain partition"): {
        "distributed.graph": "partitioned"
    },
    ("sweep.trials", "!20", _OPTUNA): _BASIC,
    ("sweep.sampler", "!tpe", _OPTUNA): _BASIC,
    ("sweep.pruner", "!median", _OPTUNA): _BASIC,
    ("sweep.seed", "!0", _OPTUNA): _BASIC,
    ("evaluation.ranks", "0", "all"): {"exact evaluation of a graph in parts": "true"},
    **dict.fromkeys((_TRITON, _PINNED, _PLACED), _TORCH),
}
_NO_TRITON = {"Triton here": "false"}
_HERE: Rules = {
    ("trainer.precision", "fp16", "bf16 or fp32"): {"the device here": "cpu"},
    ("distributed.num_processes", "!1", "1, or trainer.gpus=0,"): {"GPUs here": "!0"},
    _TRITON: {"the device here": "cpu", **_NO_TRITON},
    ("sampler.backend", "pyg", "auto"): {"pyg-lib or torch-sparse here": "false"},
    ("features.placement", "!auto memmap", "auto or memmap"): {"GPUs here": "0"},
    ("features.placement", "sharded", "resident, cached, pinned or memmap"): {"GPUs here": "1"},
    ("features.placement", "wholegraph", "auto"): {"pylibwholegraph here": "false"},
    _PINNED: {"GPUs here": "0", **_NO_TRITON},
    _GRAPH: {"GPUs here": "!1", **_NO_TRITON},
    ("compute.kernels", "triton", "auto or torch"): _NO_TRITON,
    _PLACED: _NO_TRITON,
}


# Where, how fast and how long; not what is computed. `batch_size` is judged with the ranks.
_FREE_SECTIONS = ("sweep", "logger", "checkpoint", "distributed", "features", "compute")
_FREE_KEYS = (
    *("dataset.root", "dataset.store_dir", "run.if_exists"),
    *("sampler.threads", "sampler.prefetch", "sampler.topology"),
    *("trainer.epochs", "trainer.patience", "trainer.eval_every", "trainer.log_every"),
    *("trainer.batch_size", "trainer.device", "trainer.gpus", "trainer.compile"),
    *("trainer.cuda_graph", "trainer.on_nonfinite", "trainer.max_restarts"),
    *("evaluation.ranks", "evaluation.memory_limit"),
)
# Backends that draw the same in-neighbours in the same order.
_SAME_DRAWS = {"auto", "numba", "triton"}


def from_dict(
    raw: Mapping[str, Any],
    *,
    saved: bool = False,
    found: Sequence[Problem] = (),
    begun: Config | None = None,
    for_here: bool = False,
) -> Config:
    """The configuration that `raw` (plain data, possibly in part) asks for.

    Args:
        raw: Sections by name, each a mapping of keys; what is left out has its default.
        saved: Read back from a run directory: raw files and plug-ins may have gone since, and
            are not looked for.
        found: Mistakes already known; what they touch is not compared with other keys.
        begun: The configuration of the run that goes on with this one, and stays the same run.
        for_here: Whether this machine must have all that the configuration asks for.

    Raises:
        ConfigError: With every mistake: unknown keys and names, wrong types and ranges, keys that
            contradict each other, files that are not there.
    """
    config, wrong = judged(Config, raw, saved=saved)
    known = {problem.key for problem in found}
    # Which keys there are beside a wrong name (`model=gta`) is not known; an experiment sets it.
    unsure = tuple(f"{key}." for key in config.named if {key, "experiment"} & known)
    wrong = [one for one in wrong if one.expected != UNKNOWN or not one.key.startswith(unsure)]
    problems = [*found, *(one for one in wrong if one.key not in known)]
    checks = [] if begun is None else [changed_meaning(begun, config)]
    checks.append(contradictions(config))
    if not saved:
        checks.append(missing_files(config))
    if for_here:
        checks.append(iter(machine_problems(config)))
    for check in checks:  # of keys that no mistake so far touches
        touched = *unsure, *(f"{problem.key.removesuffix('.name')}." for problem in problems)
        for one in check:
            if not any(f"{key}.".startswith(touched) for key in (one.key, *one.beside)):
                problems.append(one)
    if problems:
        raise ConfigError(problems)
    return config


def changed_meaning(begun: Config, asked: Config) -> Iterator[Problem]:
    """The keys that would make another run of it, each with the value it was begun with; `asked`
    is the configuration it is to go on with."""
    before, after = begun.to_dict(), asked.to_dict()
    for section in (one for one in after if one not in _FREE_SECTIONS):
        old, new = before[section], after[section]
        is_other_kind = old.get("name") != new.get("name")  # its name alone is told
        for key in ("name",) if is_other_kind else new:
            path, values = f"{section}.{key}", (old.get(key), new[key])
            is_same = path == "sampler.backend" and {*values} <= _SAME_DRAWS
            if values[0] != values[1] and path not in _FREE_KEYS and not is_same:
                expects = f"{shown(values[0])}, with which the run was begun"
                hint = "leave it out, or train a new run with it"
                yield Problem(path, shown(values[1]), expects, hint)


def refuse_other_arguments(config: object, overrides: object = ()) -> None:
    """Raise a UserError for what stands in the place of one of them: a graph, perhaps."""
    for name, value, kind in (("config", config, Config), ("overrides", overrides, Sequence)):
        if not isinstance(value, kind):
            raise UserError(
                f"{name} is a {type(value).__name__}, not a {kind.__name__}.",
                "A graph is given by its name: data=…; keys are Config(trainer=TrainerConfig(…)).",
            )


def contradictions(config: Config, *, plugins: bool = False) -> Iterator[Problem]:
    """The keys that cannot be as they are beside each other.

    With `plugins` a plug-in model is imported, to see whether it is one of typed graphs.
    """
    model, sampler, keys = config.model, config.sampler, config.distributed
    is_unknown = isinstance(model, PluginConfig) and not plugins
    is_typed = None if is_unknown else model.is_hetero
    is_exact = config.evaluation.name == "layerwise"
    drawn = sampler.fan_outs
    shares_rows = keys.graph != "replicated" or keys.servers > 0
    facts = {
        "a model of typed graphs": is_typed,
        "a model of typed graphs, no shared rows": is_typed and not shares_rows,
        "a fan-out of -1": any(
            min(one) < 1 for one in (drawn.values() if isinstance(drawn, Mapping) else [drawn])
        ),
        "sweep=basic": config.sweep.name == "basic",
        "exact evaluation of a graph in parts": keys.graph == "partitioned" and is_exact,
    }

    # One fan-out a layer; an evaluation that takes over those of the sampler needs no second look.
    fan_outs = {"sampler.fan_outs": drawn} if sampler.name == "neighbor" else {}
    if not is_exact and (config.evaluation.fan_outs is not None or not fan_outs):
        fan_outs["evaluation.fan_outs"] = config.evaluation.fan_outs or drawn
    for key, value in fan_outs.items() if model.uses_graph else ():
        by_type = value if isinstance(value, Mapping) else {"": value}
        if value is by_type and is_typed is False:
            expects = f"a list: model.name={model.name} is for graphs of one type"
        elif value is by_type and sampler.fan_out_scope == "node":
            expects = "a list with sampler.fan_out_scope=node"
        elif any(len(one) != model.num_layers for one in by_type.values()):
            expects = f"one number a layer: model.num_layers={model.num_layers}"
        else:
            continue
        beside = ("sampler.fan_outs", "model.num_layers", "model.name")
        yield Problem(key, shown(value), expects, beside=beside)

    trainer, of_model = config.trainer, dict(model)
    if trainer.warmup_epochs > trainer.epochs:
        key, expects = "trainer.warmup_epochs", f"at most trainer.epochs={trainer.epochs}"
        yield Problem(key, str(trainer.warmup_epochs), expects, beside=("trainer.epochs",))
    for name in ("heads", "num_blocks"):
        divisor, width = of_model.get(name), of_model.get("hidden_channels")
        if divisor is not None and width % divisor:
            expects = f"a divisor of model.hidden_channels={width}"
            yield Problem(f"model.{name}", str(divisor), expects, beside=("model.hidden_channels",))
    yield from _clashes(_CLASHES, config, facts)


def _values(config: Config, facts: Mapping[str, object]) -> dict[str, str]:
    """Every key's value and every fact as text."""
    keys = {f"{name}.{key}": value for name, section in config for key, value in section}
    return {key: shown(value) for key, value in {**keys, **facts}.items()}


def _clashes(rules: Rules, config: Config, facts: Mapping[str, object]) -> Iterator[Problem]:
    values = _values(config, facts)
    for (key, wrong, instead), others in rules.items():
        for other, beside in others.items() if _is_one_of(values.get(key), wrong) else ():
            if _is_one_of(values.get(other), beside):
                told = other if values[other] == "true" else f"{other}={values[other]}"
                hint = "leave it out" if other in facts else "leave one of the two out"
                yield Problem(key, values[key], f"{instead} with {told}", hint, (other,))


def _is_one_of(value: str | None, words: str) -> bool:
    is_named = value in words.removeprefix("!").split()
    return value is not None and is_named != words.startswith("!")


def missing_files(config: Config) -> Iterator[Problem]:
    """The files of `dataset=files` that are not there, or that others are in place of."""
    data = config.dataset
    # Of a graph in parts the data set's own files are not read.
    if not isinstance(data, FilesConfig) or config.distributed.graph == "partitioned":
        return
    whole = "data" if data.data else "schema" if data.schema else None
    columns = ["ignore", "categorical"]
    columns += [key for key in FilesConfig.model_fields if key.endswith(("_column", "_columns"))]
    keys = ["data", "schema", "edges", "features", "labels", "split"]
    for key in (*keys, *columns) if whole == "schema" else keys:
        value, expects, hint = getattr(data, key), "", ""
        if whole is None and key in ("edges", "features") and value is None:
            expects = f"the file of {key}"
            hint = f"write dataset.{key}=FILE, dataset.schema=FILE or dataset.data=FILE"
        elif whole not in (None, key) and value and (isinstance(value, str) or key in columns):
            expects, hint = f"no value: dataset.{whole} says it", "leave one of the two out"
        elif isinstance(value, str) and not is_file(value):
            near = did_you_mean(Path(value).name, file_names(Path(value).parent))
            expects, hint = "a file that exists", near or "set dataset.root to the files' folder"
        if expects:
            yield Problem(f"dataset.{key}", as_typed(value), expects, hint)


def training_device(trainer: TrainerConfig, found: Mapping[str, int]) -> tuple[str, int]:
    """The type of the device that trains, and on how many GPUs, perhaps more than there are: "cpu",
    0 for none. `found` is how many the machine has, by their type."""
    if trainer.device == "cpu" or trainer.gpus == 0:
        return "cpu", 0
    kind = next(iter(found), "cuda") if trainer.device == "auto" else trainer.device
    number = found.get(kind, 0) if trainer.gpus == "auto" else trainer.gpus
    return (kind, number) if number else ("cpu", 0)


def machine_problems(config: Config) -> list[Problem]:
    """What this machine lacks."""
    trainer, values, found = config.trainer, _values(config, {}), dict[str, int]()
    is_cpu = trainer.device == "cpu" or trainer.gpus == 0
    is_asked = trainer.device != "auto" or trainer.gpus != "auto"
    keys = (_is_one_of(values.get(key), wrong) for key, wrong, _ in _HERE)
    if not is_cpu and (is_asked or any(keys)):
        from gnntrain.devices import gpus_here  # imports torch; most configurations need no look

        found = gpus_here()
    kind, num_gpus = training_device(trainer, found)
    there, ranks = found.get(kind, 0), config.distributed.num_processes
    # On the CPU Triton's interpreter computes its kernels, as in tests.
    interprets = kind == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    facts = {
        "the device here": kind,
        "GPUs here": num_gpus,
        "Triton here": find_spec("triton") is not None and (kind == "cuda" or interprets),
        "pyg-lib or torch-sparse here": bool(find_spec("pyg_lib") or find_spec("torch_sparse")),
        "pylibwholegraph here": kind == "cuda" and find_spec("pylibwholegraph") is not None,
    }
    problems: list[Problem] = []
    if trainer.device not in ("auto", "cpu", *found):
        expects = f"one of auto, {', '.join(['cpu', *found])}: torch sees no such GPU here"
        problems.append(Problem("trainer.device", trainer.device, expects, "see `gnntrain doctor`"))
    elif num_gpus > there:
        expects = f"at most {there}: torch sees {there} GPUs on this machine"
        hint = f"write trainer.gpus={there or '0 to train on the CPU'}"
        problems.append(Problem("trainer.gpus", shown(trainer.gpus), expects, hint))
    # Any machine may try 8; beyond, 4 a core, and 256 MiB each, which it takes before it begins.
    most = max(8, min(4 * available_cores(), total_memory() // 2**28))
    if ranks > most:
        expects = f"at most {most} ranks on this machine, for its cores and memory"
        problems.append(Problem("distributed.num_processes", str(ranks), expects))
    problems += _clashes(_HERE, config, facts)
    chosen = config.logger.chosen()
    for name in ("tensorboard", "wandb", "mlflow"):
        if name in chosen and find_spec(name) is None:
            rest = ",".join(other for other in chosen if other != name)
            expects = f"loggers whose packages are installed: {name} is not"
            hint = f"`pip install {name}`, or write logger=[{rest}]"
            problems.append(Problem("logger", shown(list(chosen)), expects, hint))
    return list({problem.key: problem for problem in reversed(problems)}.values())[::-1]
