"""Mistakes that no single key shows: keys that contradict each other, the files, the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from gnntrain.config.models import PluginConfig
from gnntrain.config.problems import Problem, did_you_mean, shown
from gnntrain.config.published import DATASET_NAMES
from gnntrain.config.schema import Config, FilesConfig, SyntheticConfig, TrainerConfig
from gnntrain.config.types import Divides
from gnntrain.errors import UserError
from gnntrain.limits import available_cores, total_memory
from gnntrain.paths import file_names, is_file

# Ranks that any machine may try; beyond, some a core, and what a rank takes before it has begun.
_ALWAYS_RANKS = 8
_RANKS_A_CORE = 4
_RANK_BYTES = 256 * 2**20
_ROLES = ("edges", "features", "labels", "split")
_COLUMN_KEYS = (
    *("source_column", "target_column", "weight_column", "id_column", "label_column"),
    *("split_column", "feature_columns", "ignore", "categorical"),
)

# A key, its wrong values, another key or fact, its values beside which they are wrong, and values
# instead. `!a b` are all values but a and b.
_CLASHES = (
    ("sampler.threads", "!0 null", "sampler.backend", "pyg", "0 or null"),
    ("sampler.fan_out_scope", "node", "sampler.backend", "pyg", "relation"),
    ("sampler.topology", "host", "sampler.backend", "triton", "resident, pinned or auto"),
    ("sampler.topology", "resident pinned", "sampler.backend", "numba pyg", "host or auto"),
    ("distributed.graph", "sharded", "sampler.name", "full", "replicated"),
    ("features.placement", "!auto memmap wholegraph", "distributed.graph", "sharded", "auto"),
    ("distributed.servers", "!0", "features.placement", "wholegraph", "0"),
    *(  # A CUDA graph replays a step as it was recorded.
        ("trainer.cuda_graph", "true", other, values, "false")
        for other, values in (
            ("sampler.name", "full"),
            ("sampler.backend", "numba pyg"),
            ("sampler.topology", "host"),
            ("a fan-out of -1", "true"),
            ("features.placement", "memmap wholegraph"),
            ("distributed.graph", "!replicated"),
            ("model.norm", "batch"),
            ("model.options", "!"),  # a plug-in
            ("trainer.precision", "fp16"),
            ("trainer.on_nonfinite", "skip"),
            ("trainer.compile", "true"),
            ("trainer.gpus", "!auto 1"),
        )
    ),
    *(  # Ranks that hold the graph draw for others.
        (key, wrong, other, values, instead)
        for other, values in (("distributed.servers", "!0"), ("distributed.graph", "partitioned"))
        for key, wrong, instead in (
            ("sampler.backend", "!auto numba", "auto"),
            ("sampler.topology", "!auto host", "auto"),
            ("trainer.cuda_graph", "true", "false"),
            ("sampler.name", "full", "neighbor"),
            ("features.placement", "!auto memmap", "auto"),
        )
    ),
    *(  # With a model of typed graphs the CPU draws, and a GPU caches no rows.
        (key, wrong, "a model of typed graphs", "true", instead)
        for key, wrong, instead in (
            ("sampler.backend", "triton", "auto"),
            ("sampler.topology", "!auto host", "auto"),
            ("features.placement", "cached sharded wholegraph", "auto"),
            ("trainer.cuda_graph", "true", "false"),
        )
    ),
    ("features.cache_ratio", "!null", "a model of typed graphs, no shared rows", "true", "null"),
    ("features.cache_bytes", "!null", "a model of typed graphs, no shared rows", "true", "null"),
    ("model.embedding_channels", "!null", "model.featureless", "one_hot", "null"),
    # Little more than signs would be left of a row. A batch's statistics are a column's.
    ("model.norm", "layer", "model.hidden_channels", "1 2", "none or batch"),
    ("model.normalize", "true", "model.hidden_channels", "1 2", "false"),
    ("trainer.gpus", "!auto 0", "trainer.device", "cpu", "0 or auto"),
    ("trainer.gpus", "0", "trainer.device", "!auto cpu", "auto or a number above 0"),
    ("trainer.warmup_epochs", "!0", "trainer.scheduler", "plateau", "0"),
    ("trainer.precision", "fp16", "trainer.device", "cpu", "bf16 or fp32"),
    ("trainer.precision", "fp16", "trainer.gpus", "0", "bf16 or fp32"),
    ("distributed.num_processes", "!1", "trainer.gpus", "!auto 0", "1 (each GPU is a rank)"),
    ("dataset.task", "!auto regression", "task.type", "node_regression", "auto or regression"),
    ("dataset.task", "regression", "task.type", "node_classification", "auto"),
    ("task.type", "node_regression", "a data set of classes", "true", "node_classification"),
    ("task.loss", "!mse", "task.type", "node_classification", "mse, which has no effect,"),
    ("task.positive_class", "!null", "task.type", "node_regression", "null"),
    ("trainer.label_smoothing", "!0.0", "task.type", "node_regression", "0"),
    ("trainer.class_weights", "!none", "task.type", "node_regression", "none"),
    ("distributed.parts", "!null", "distributed.graph", "replicated sharded", "null"),
    (
        "distributed.parts",
        "null",
        "distributed.graph",
        "partitioned",
        "a folder by gnntrain partition",
    ),
    ("evaluation.ranks", "0", "exact evaluation of a graph in parts", "true", "all"),
)
_TRITON = (
    ("sampler.backend", "triton", "auto or numba"),
    ("sampler.topology", "resident pinned", "auto or host"),
    ("features.placement", "pinned sharded", "auto, resident, cached or memmap"),
    ("trainer.cuda_graph", "true", "false"),
)
_HERE = (
    ("trainer.precision", "fp16", "the device here", "cpu", "bf16 or fp32"),
    ("distributed.num_processes", "!1", "GPUs here", "!0", "1, or trainer.gpus=0,"),
    ("sampler.backend", "triton", "the device here", "cpu", "auto or numba"),
    ("sampler.backend", "pyg", "pyg-lib or torch-sparse here", "false", "auto"),
    ("features.placement", "!auto memmap", "GPUs here", "0", "auto or memmap"),
    ("features.placement", "sharded", "GPUs here", "1", "resident, cached, pinned or memmap"),
    ("features.placement", "wholegraph", "pylibwholegraph here", "false", "auto"),
    ("sampler.topology", "resident pinned", "GPUs here", "0", "auto or host"),
    ("trainer.cuda_graph", "true", "GPUs here", "!1", "false"),
    ("compute.kernels", "triton", "Triton here", "false", "auto or torch"),
    *((key, wrong, "Triton here", "false", instead) for key, wrong, instead in _TRITON),
)

Rules = Iterable[tuple[str, str, str, str, str]]
Contradiction = tuple[tuple[str, ...], Problem]
"""The keys that are compared, and the problem if they do not go together."""


def refuse_other_arguments(config: object, overrides: object = ()) -> None:
    """Refuse what stands in the place of a configuration or of overrides: a graph, perhaps.

    Raises:
        UserError: One of them is of another type.
    """
    for name, value, kind in (("config", config, Config), ("overrides", overrides, Sequence)):
        if not isinstance(value, kind):
            raise UserError(
                f"{name} is a {type(value).__name__}, not a {kind.__name__}.",
                "A graph is given by its name: data=…; keys are Config(trainer=TrainerConfig(…)).",
            )


def contradictions(config: Config, *, plugins: bool = False) -> Iterator[Contradiction]:
    """The keys that cannot be as they are because of each other.

    Args:
        config: The configuration.
        plugins: Import a plug-in model, to compare what depends on whether it is one of typed
            graphs.
    """
    is_unknown = isinstance(config.model, PluginConfig) and not plugins
    is_typed = None if is_unknown else config.model.is_hetero
    keys, fan_outs = config.distributed, config.sampler.fan_outs
    lists = [*fan_outs.values()] if isinstance(fan_outs, Mapping) else [fan_outs]
    name, is_exact = config.dataset.name, config.evaluation.name == "layerwise"
    shares_rows = keys.graph != "replicated" or keys.servers > 0
    facts = {
        "a model of typed graphs": is_typed,
        "a model of typed graphs, no shared rows": is_typed and not shares_rows,
        "a fan-out of -1": any(min(of_type) < 1 for of_type in lists),
        "a data set of classes": name in DATASET_NAMES and name != "files",
        "exact evaluation of a graph in parts": keys.graph == "partitioned" and is_exact,
    }
    yield from _fan_outs(config, is_typed)
    yield from _divisors(config)
    yield from _numbers(config)
    yield from _clashes(_CLASHES, config, facts)
    torchs = ((key, bad, "compute.kernels", "torch", instead) for key, bad, instead in _TRITON)
    yield from _clashes(torchs, config, {})


def _clashes(rules: Rules, config: Config, facts: Mapping[str, object]) -> Iterator[Contradiction]:
    for key, wrong, other, beside, instead in rules:
        value = _value(config, key)
        its_value = shown(facts[other]) if other in facts else _value(config, other)
        if _is_one_of(value, wrong) and _is_one_of(its_value, beside):
            told = other if its_value == "true" else f"{other}={its_value}"
            hint = "leave it out" if other in facts else "leave one of the two out"
            yield (key, other), Problem(key, str(value), f"{instead} with {told}", hint)


def _value(config: Config, key: str) -> str | None:
    """The value of a key as text; None if the chosen section has no such key."""
    section, _, name = key.partition(".")
    keys = getattr(config, section)
    return shown(getattr(keys, name)) if name in type(keys).model_fields else None


def _is_one_of(value: str | None, words: str) -> bool:
    is_named = value in words.removeprefix("!").split()
    return value is not None and is_named != words.startswith("!")


def _numbers(config: Config) -> Iterator[Contradiction]:
    """Numbers that do not fit others."""
    data, trainer, nodes = config.dataset, config.trainer, "dataset.num_nodes"

    def wrong(key: str, expects: str, other: str = nodes) -> Contradiction:
        problem = Problem(
            key, str(_value(config, key)), f"{expects} {other}={_value(config, other)}"
        )
        return (key, other), problem

    if trainer.warmup_epochs > trainer.epochs:
        yield wrong("trainer.warmup_epochs", "at most", "trainer.epochs")
    if not isinstance(data, SyntheticConfig):
        return
    if data.num_classes > data.num_nodes:
        yield wrong("dataset.num_classes", "at most")
    if sum(size or 0 for size in (data.num_train, data.num_val, data.num_test)) > data.num_nodes:
        yield wrong("dataset.num_train", "with num_val and num_test together at most")
    if data.num_edges is None and data.avg_degree > data.num_nodes - 1:
        yield wrong("dataset.avg_degree", "less than")
    if data.num_edges is not None and data.num_edges > data.num_nodes * (data.num_nodes - 1):
        yield wrong("dataset.num_edges", "at most all pairs of")
    elif data.num_edges is not None and data.num_edges % 2:
        yield wrong("dataset.num_edges", "an even number (edges lie in both directions), with")


def _fan_outs(config: Config, is_typed: bool | None) -> Iterator[Contradiction]:
    """Fan-outs that are not one a layer, or by edge type where they cannot be."""
    sampler, evaluation, num_layers = config.sampler, config.evaluation, config.model.num_layers
    compared = {"sampler.fan_outs": sampler.fan_outs} if sampler.name == "neighbor" else {}
    # Where sampler.fan_outs is compared, an evaluation that takes it over needs no second look.
    if evaluation.name == "sampled" and (evaluation.fan_outs is not None or not compared):
        compared["evaluation.fan_outs"] = evaluation.fan_outs or sampler.fan_outs
    for key, fan_outs in compared.items() if config.model.uses_graph else ():
        is_by_type = isinstance(fan_outs, Mapping)
        lists = fan_outs.values() if isinstance(fan_outs, Mapping) else [fan_outs]
        if is_by_type and is_typed is False:
            expects = f"a list: model.name={config.model.name} is for graphs of one type"
        elif is_by_type and sampler.fan_out_scope == "node":
            expects = "a list with sampler.fan_out_scope=node: edge types share a node's fan-out"
        elif any(len(of_type) != num_layers for of_type in lists):
            if isinstance(fan_outs, Mapping):
                fan_outs = {t: one for t, one in fan_outs.items() if len(one) != num_layers}
            expects = f"one number a layer: model.num_layers={num_layers}"
        else:
            continue
        problem = Problem(key, shown(fan_outs), expects)
        yield (key, "sampler.fan_outs", "model.num_layers", "model.name"), problem


def _divisors(config: Config) -> Iterator[Contradiction]:
    """The model's keys that must divide another one, as heads must divide hidden_channels."""
    for key, field in type(config.model).model_fields.items():
        for other in (item.key for item in field.metadata if isinstance(item, Divides)):
            divisor, whole = getattr(config.model, key), getattr(config.model, other)
            if divisor is not None and whole % divisor:
                below = max(n for n in range(1, divisor + 1) if whole % n == 0)
                hint = f"write model.{key}={below} or model.{other}={whole + -whole % divisor}"
                expects = f"a divisor of model.{other}={whole}"
                problem = Problem(f"model.{key}", shown(divisor), expects, hint)
                yield (f"model.{key}", f"model.{other}"), problem


def idle_keys(config: Config, overrides: Sequence[str]) -> Iterator[str]:
    """Sentences about the keys among `overrides` that do nothing beside others."""
    model, is_full = config.model, config.sampler.name == "full"
    is_exact, is_plugin = config.evaluation.name == "layerwise", isinstance(model, PluginConfig)
    takes_fan_outs = not is_exact and config.evaluation.fan_outs is None
    # GIN's layer is itself an MLP with both; a model of typed graphs projects its inputs.
    is_one = model.uses_graph and not is_plugin and model.num_layers == 1 and model.name != "gin"
    is_one = is_one and getattr(model, "jk", "none") == "none"
    full, exact, one = "sampler=full", "evaluation=layerwise, which is exact", "model.num_layers=1"
    loss, jk = config.task.loss, getattr(model, "jk", "none")
    idle = {
        "trainer.batch_size": (is_full, full),
        "trainer.drop_last": (is_full, full),
        "sampler.replace": (is_full, full),
        "sampler.fan_out_scope": (is_full, full),
        "sampler.fan_outs": (is_full and not takes_fan_outs, full),
        "evaluation.fan_outs": (is_exact, exact),
        "evaluation.max_steps": (is_exact, exact),
        "evaluation.batch_size": (is_exact and not is_plugin, exact),
        "task.huber_delta": (loss != "huber", f"task.loss={loss}"),
        "model.output_heads": (jk != "none", f"model.jk={jk}"),
        "model.norm": (is_one, one),
        "model.activation": (is_one and not model.is_hetero, one),
    }
    for key in dict.fromkeys(text.lstrip("+").partition("=")[0] for text in overrides):
        does_nothing, beside = idle.get(key, (False, ""))
        if does_nothing:
            yield f"{key} does nothing with {beside}."


def missing_files(config: Config) -> Iterator[Problem]:
    """Files in place of folders, parts and the files of `dataset=files` that are not there."""
    data, parts = config.dataset, config.distributed.parts
    if parts is not None and not is_file(Path(parts) / "partition.json"):
        expects = "a folder that gnntrain partition has written: it has no partition.json"
        yield Problem("distributed.parts", parts, expects)
    for key in ("root", "store_dir"):
        folder = getattr(data, key)
        if folder is not None and is_file(folder):
            yield Problem(f"dataset.{key}", folder, "a folder, but this is a file")
    # Of a graph in parts the data set's own files are not read.
    if not isinstance(data, FilesConfig) or config.distributed.graph == "partitioned":
        return
    whole = "data" if data.data else "schema" if data.schema else None
    for key in ("edges", "features") if whole is None else ():
        if getattr(data, key) is None:
            hint = f"write dataset.{key}=FILE, dataset.schema=FILE or dataset.data=FILE"
            yield Problem(f"dataset.{key}", "null", f"the file of {key}", hint)
    columns = _COLUMN_KEYS if whole == "schema" else ("schema",) if whole == "data" else ()
    for key in (*_ROLES, *columns) if whole is not None else ():
        value = getattr(data, key)
        if value and (isinstance(value, str) or key in columns):
            expects = f"no value: dataset.{whole} says it"
            yield Problem(f"dataset.{key}", shown(value), expects, "leave one of the two out")
    for key in ("data", "schema", *_ROLES):
        path = getattr(data, key)
        if isinstance(path, str) and not is_file(path):
            near = did_you_mean(Path(path).name, file_names(Path(path).parent))
            hint = near or "set dataset.root to the files' folder"
            yield Problem(f"dataset.{key}", path, "a file that exists", hint)


def training_device(trainer: TrainerConfig, found: Mapping[str, int]) -> tuple[str, int]:
    """The type of the device that trains, and on how many GPUs: "cpu", 0 for none.

    Args:
        trainer: The `trainer` keys; they may ask for more GPUs than there are.
        found: How many GPUs the machine has, by their type.
    """
    if trainer.device == "cpu" or trainer.gpus == 0:
        return "cpu", 0
    kind = next(iter(found), "cuda") if trainer.device == "auto" else trainer.device
    number = found.get(kind, 0) if trainer.gpus == "auto" else trainer.gpus
    return (kind, number) if number else ("cpu", 0)


def needs_gpu_count(config: Config) -> bool:
    """Whether `machine_problems` depends on the GPUs; to count them costs an import of torch."""
    trainer = config.trainer
    if trainer.device == "cpu" or trainer.gpus == 0:
        return False
    is_asked = trainer.device != "auto" or trainer.gpus != "auto"
    return is_asked or any(_is_one_of(_value(config, key), wrong) for key, wrong, *_ in _HERE)


def machine_problems(config: Config, found: Mapping[str, int]) -> list[Problem]:
    """What this machine lacks: GPUs, and the libraries that a sampling backend or a logger needs.

    Args:
        config: The configuration.
        found: How many GPUs torch sees, by their type; anything where `needs_gpu_count` is false.
    """
    trainer, (kind, num_gpus) = config.trainer, training_device(config.trainer, found)
    is_absent = trainer.device not in ("auto", "cpu", *found)
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
    if is_absent:
        expects = f"one of auto, {', '.join(['cpu', *found])}: torch sees no such GPU here"
        problems.append(Problem("trainer.device", trainer.device, expects, "see `gnntrain doctor`"))
    elif num_gpus > there:
        expects = f"at most {there}: torch sees {there} GPUs on this machine"
        hint = f"write trainer.gpus={there or '0 to train on the CPU'}"
        problems.append(Problem("trainer.gpus", shown(trainer.gpus), expects, hint))
    by_cores, by_memory = _RANKS_A_CORE * available_cores(), total_memory() // _RANK_BYTES
    most = max(_ALWAYS_RANKS, min(by_cores, by_memory))
    if ranks > most:
        expects = f"at most {most} ranks on this machine, for its cores and memory"
        problems.append(Problem("distributed.num_processes", str(ranks), expects))
    problems += (problem for _, problem in _clashes(_HERE, config, facts))
    chosen = config.logger.chosen()
    for name in ("tensorboard", "wandb", "mlflow"):
        if name in chosen and find_spec(name) is None:
            rest = ",".join(other for other in chosen if other != name)
            expects = f"loggers whose packages are installed: {name} is not"
            hint = f"`pip install {name}`, or write logger=[{rest}]"
            problems.append(Problem("logger", shown(list(chosen)), expects, hint))
    return list({problem.key: problem for problem in reversed(problems)}.values())[::-1]
