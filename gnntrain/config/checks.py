"""Mistakes that no single key shows: keys that contradict each other, the files, the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from gnntrain.config.datasets import FilesConfig, SyntheticConfig
from gnntrain.config.models import PluginConfig
from gnntrain.config.names import DATASET_NAMES
from gnntrain.config.problems import Problem, nearest, shown
from gnntrain.config.schema import Config, TrainerConfig
from gnntrain.config.types import Divides
from gnntrain.errors import UserError
from gnntrain.limits import available_cores, total_memory
from gnntrain.paths import file_names, is_file, is_folder

# Ranks that any machine may try; beyond, some a core, and what a rank takes before it has begun.
_ALWAYS_RANKS = 8
_RANKS_A_CORE = 4
_RANK_BYTES = 256 * 2**20
_LEAVE_OUT = "leave it out"
_GET_TRITON = "`pip install triton`, which comes with torch's CUDA builds for Linux"

_ROLES = ("edges", "features", "labels", "split")
_COLUMN_KEYS = (
    *("source_column", "target_column", "weight_column", "id_column", "label_column"),
    *("split_column", "feature_columns", "ignore", "categorical"),
)
_DEVICES = {"cpu": "the CPU", "mps": "Apple's GPUs", "xpu": "Intel's GPUs"}

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
    yield from _fan_outs(config, is_typed)
    yield from _divisors(config)
    yield from _narrow_norms(config)
    yield from _synthetic(config)
    yield from _sampler(config)
    yield from _sharded(config)
    yield from _wholegraph(config)
    yield from _cuda_graph(config)
    yield from _torch_kernels(config)
    yield from _device(config)
    yield from _training(config)
    yield from _task(config)
    yield from _partitioned(config)
    yield from _owners_draw(config)
    if is_typed:
        yield from _typed(config)


_OF_FULL = ("trainer.batch_size", "trainer.drop_last", "sampler.replace", "sampler.fan_out_scope")
_OF_SAMPLED = ("evaluation.fan_outs", "evaluation.max_steps")


def idle_keys(config: Config, overrides: Sequence[str]) -> Iterator[str]:
    """Sentences about the keys among `overrides` that do nothing beside others."""
    model, sampler, evaluation = config.model, config.sampler, config.evaluation
    is_full, is_exact = sampler.name == "full", evaluation.name == "layerwise"
    is_plugin, jk = isinstance(model, PluginConfig), getattr(model, "jk", "none")
    takes_fan_outs = not is_exact and evaluation.fan_outs is None
    # GIN's layer is itself an MLP with both; a model of typed graphs projects its inputs.
    is_one = model.uses_graph and not is_plugin and model.num_layers == 1 and jk == "none"
    is_one = is_one and model.name != "gin"
    loss = getattr(config.task, "loss", "huber")
    idle = [
        (_OF_FULL, is_full, "sampler=full"),
        (("sampler.fan_outs",), is_full and not takes_fan_outs, "sampler=full"),
        (_OF_SAMPLED, is_exact, "evaluation=layerwise, which is exact"),
        (
            ("evaluation.batch_size",),
            is_exact and not is_plugin,
            "evaluation=layerwise, which is exact",
        ),
        (("task.huber_delta",), loss != "huber", f"task.loss={loss}"),
        (("model.output_heads",), jk != "none", f"model.jk={jk}"),
        (("model.norm",), is_one, "model.num_layers=1"),
        (("model.activation",), is_one and not model.is_hetero, "model.num_layers=1"),
    ]
    typed = {override.lstrip("+").partition("=")[0] for override in overrides}
    for keys, does_nothing, beside in idle:
        useless = [key for key in keys if key in typed] if does_nothing else []
        if useless:
            do = "does" if len(useless) == 1 else "do"
            yield f"{', '.join(useless)} {do} nothing with {beside}."


def _wrong(config: Config, key: str, expects: str, hint: str | None = None) -> Problem:
    """The problem of a key with the value that it has."""
    section, _, name = key.partition(".")
    return Problem(key, shown(getattr(getattr(config, section), name)), expects, hint)


def _clash(
    config: Config, key: str, other: str, expects: str, hint: str | None = None
) -> Contradiction:
    """Two keys of which the first cannot have its value while the second has its."""
    return (key, other), _wrong(config, key, expects, hint)


def _fan_outs(config: Config, is_typed: bool | None) -> Iterator[Contradiction]:
    if not config.model.uses_graph:
        return
    sampler, evaluation = config.sampler, config.evaluation
    compared = {"sampler.fan_outs": sampler.fan_outs} if sampler.name == "neighbor" else {}
    # Where sampler.fan_outs is compared, an evaluation that takes it over needs no second look.
    if evaluation.name == "sampled" and (evaluation.fan_outs is not None or not compared):
        compared["evaluation.fan_outs"] = evaluation.fan_outs or sampler.fan_outs
    for key, fan_outs in compared.items():
        keys = (key, "sampler.fan_outs", "model.num_layers", "model.name")
        if isinstance(fan_outs, Mapping):
            found = _typed_fan_outs(config, key, fan_outs, is_typed)
            yield from ((keys, problem) for problem in found)
        elif len(fan_outs) != config.model.num_layers:
            yield keys, _wrong_number(config, key, fan_outs)


def _wrong_number(config: Config, key: str, fan_outs: tuple[int, ...], path: str = "") -> Problem:
    """The problem of fan-outs that are not one a layer; `path` leads to a list in a mapping."""
    num_layers = config.model.num_layers
    resized = (fan_outs + fan_outs[-1:] * num_layers)[:num_layers]
    meant = shown(resized if num_layers <= 8 else fan_outs)
    instead = f"{key}={meant}" if not path else f"{path}:{meant}"
    hint = f"write {instead} or model.num_layers={len(fan_outs)}"
    expects = f"one number a layer: model.num_layers={num_layers}"
    given = shown(fan_outs) if not path else f"{{{path}:{shown(fan_outs)}}}"
    return Problem(key, given, expects, hint)


def _typed_fan_outs(
    config: Config, key: str, fan_outs: Mapping[str, tuple[int, ...]], is_typed: bool | None
) -> Iterator[Problem]:
    """What is wrong with fan-outs by edge type."""
    if is_typed is False:
        expects = f"a list: model.name={config.model.name} is for graphs of one type"
        one_list = next(iter(fan_outs.values()))
        yield Problem(key, shown(fan_outs), expects, f"write {key}={shown(one_list)}")
        return
    if config.sampler.fan_out_scope == "node":
        expects = "a list with sampler.fan_out_scope=node: all edge types share a node's fan-out"
        yield Problem(key, shown(fan_outs), expects)
    for name, of_type in fan_outs.items():
        if len(of_type) != config.model.num_layers:
            yield _wrong_number(config, key, of_type, name)


def _divisors(config: Config) -> Iterator[Contradiction]:
    """The model's keys that must divide another one, as heads must divide hidden_channels."""
    fields = type(config.model).model_fields
    pairs = [
        (key, item.key)
        for key, field in fields.items()
        for item in field.metadata
        if isinstance(item, Divides)
    ]
    for key, other in pairs:
        divisor, whole = getattr(config.model, key), getattr(config.model, other)
        if divisor is not None and whole % divisor:
            below = max(n for n in range(1, divisor + 1) if whole % n == 0)
            hint = f"write model.{key}={below} or model.{other}={whole + -whole % divisor}"
            expects = f"a divisor of model.{other}={whole}"
            yield _clash(config, f"model.{key}", f"model.{other}", expects, hint)


def _narrow_norms(config: Config) -> Iterator[Contradiction]:
    """Norms within a row of one or two numbers. Batch normalisation is sound at any width: its
    statistics are a column's."""
    width = getattr(config.model, "hidden_channels", 3)
    for key, norm, instead in (("norm", "layer", "none or batch"), ("normalize", True, "false")):
        if width < 3 and getattr(config.model, key, None) == norm:
            given = f"model.hidden_channels={width}"
            expects = f"{instead} with {given}: little more than signs would be left of a row"
            yield _clash(config, f"model.{key}", "model.hidden_channels", expects)


def _synthetic(config: Config) -> Iterator[Contradiction]:
    data = config.dataset
    if not isinstance(data, SyntheticConfig):
        return
    nodes, most_edges = f"dataset.num_nodes={data.num_nodes}", data.num_nodes * (data.num_nodes - 1)
    splits = {"num_train": data.num_train, "num_val": data.num_val, "num_test": data.num_test}
    sizes = {key: size for key, size in splits.items() if size is not None}
    if data.num_classes > data.num_nodes:
        yield _impossible(config, "num_classes", f"at most {nodes}")
    if sum(sizes.values()) > data.num_nodes:
        total = " + ".join(map(str, sizes.values()))
        expects = f"{' + '.join(sizes)} = {total} = {sum(sizes.values())} to be at most {nodes}"
        yield _impossible(config, max(sizes, key=lambda key: sizes[key]), expects, *sizes)
    if data.num_edges is None:
        if data.avg_degree > data.num_nodes - 1:
            yield _impossible(config, "avg_degree", f"at most {data.num_nodes - 1}, since {nodes}")
        return
    if data.num_edges % 2:
        expects = "an even number: each edge is stored in both directions"
        hint = f"write dataset.num_edges={data.num_edges + 1}"
        yield _impossible(config, "num_edges", expects, hint=hint)
    if data.num_edges > most_edges:
        yield _impossible(config, "num_edges", f"at most {most_edges}, all pairs of {nodes}")


def _impossible(
    config: Config, key: str, expects: str, *others: str, hint: str | None = None
) -> Contradiction:
    keys = tuple(f"dataset.{name}" for name in (key, "num_nodes", *others))
    return keys, _wrong(config, keys[0], expects, hint)


def _sampler(config: Config) -> Iterator[Contradiction]:
    backend, topology = config.sampler.backend, config.sampler.topology
    if backend == "pyg" and config.sampler.threads:
        expects = "0 or null with sampler.backend=pyg, which draws from dropout's generator"
        yield _clash(config, "sampler.threads", "sampler.backend", expects, _LEAVE_OUT)
    if backend == "pyg" and config.sampler.fan_out_scope == "node":
        expects = "relation with sampler.backend=pyg: PyG's fan-outs are those of a relation"
        yield _clash(config, "sampler.fan_out_scope", "sampler.backend", expects, _LEAVE_OUT)
    if backend == "triton" and topology == "host":
        expects = "resident, pinned or auto with sampler.backend=triton, which draws on the GPU"
        hint = "write sampler.backend=numba"
        yield _clash(config, "sampler.topology", "sampler.backend", expects, hint)
    elif backend in ("numba", "pyg") and topology in ("resident", "pinned"):
        expects = f"host or auto with sampler.backend={backend}, which draws on the CPU"
        hint = "write sampler.backend=triton"
        yield _clash(config, "sampler.topology", "sampler.backend", expects, hint)


def _sharded(config: Config) -> Iterator[Contradiction]:
    """What needs all feature rows where a machine has a part of them."""
    if config.distributed.graph != "sharded":
        return
    if config.sampler.name == "full":
        expects = "replicated with sampler.name=full: each rank computes the whole graph"
        yield _clash(config, "distributed.graph", "sampler.name", expects, _LEAVE_OUT)
    if config.features.placement not in ("auto", "memmap", "wholegraph"):
        expects = (
            "auto, memmap or wholegraph with distributed.graph=sharded: no machine reads all rows"
        )
        yield _clash(config, "features.placement", "distributed.graph", expects, _LEAVE_OUT)


def _wholegraph(config: Config) -> Iterator[Contradiction]:
    """What WholeGraph's memory, which all GPUs of the run hold together, cannot do."""
    if config.features.placement == "wholegraph" and config.distributed.servers:
        expects = "0 with features.placement=wholegraph: servers have no part in its memory"
        yield _clash(config, "distributed.servers", "features.placement", expects, _LEAVE_OUT)


def _takes_all(fan_outs: tuple[int, ...] | Mapping[str, tuple[int, ...]]) -> bool:
    lists = fan_outs.values() if isinstance(fan_outs, Mapping) else [fan_outs]
    return any(min(of_type) < 1 for of_type in lists)


def _cuda_graph(config: Config) -> Iterator[Contradiction]:
    """What a step that is replayed as it was recorded cannot do."""
    sampler, trainer = config.sampler, config.trainer
    if not trainer.cuda_graph:
        return
    hindrances = [
        ("sampler.name", sampler.name == "full", "neighbor"),
        ("sampler.backend", sampler.backend in ("numba", "pyg"), "triton"),
        ("sampler.topology", sampler.topology == "host", "auto"),
        ("sampler.fan_outs", _takes_all(sampler.fan_outs), "numbers >= 1: -1 has no bound"),
        ("features.placement", config.features.placement in ("memmap", "wholegraph"), "auto"),
        ("distributed.graph", config.distributed.graph != "replicated", "replicated"),
        ("model.norm", getattr(config.model, "norm", "none") == "batch", "layer or none"),
        ("model.name", isinstance(config.model, PluginConfig), "a model of gnntrain's own"),
        ("trainer.precision", trainer.precision == "fp16", "bf16"),
        ("trainer.on_nonfinite", trainer.on_nonfinite == "skip", "stop"),
        ("trainer.compile", trainer.compile, "false"),
        ("trainer.gpus", trainer.gpus not in ("auto", 1), "1"),
    ]
    for key, hinders, instead in hindrances:
        if hinders:
            yield _clash(config, "trainer.cuda_graph", key, f"false unless {key} is {instead}")


def _triton_only(config: Config) -> Iterator[tuple[str, str]]:
    """The keys with values that need Triton's kernels, each with values that do not."""
    values = [
        ("sampler.backend", config.sampler.backend == "triton", "auto or numba"),
        ("sampler.topology", config.sampler.topology in ("resident", "pinned"), "auto or host"),
        (
            "features.placement",
            config.features.placement in ("pinned", "sharded"),
            "auto, resident, cached or memmap",
        ),
        ("trainer.cuda_graph", config.trainer.cuda_graph, "false"),
    ]
    yield from ((key, instead) for key, needs_triton, instead in values if needs_triton)


def _torch_kernels(config: Config) -> Iterator[Contradiction]:
    """What torch's own operators cannot do: read host memory from a GPU, and draw there."""
    if config.compute.kernels == "torch":
        for key, instead in _triton_only(config):
            expects = f"{instead} with compute.kernels=torch: it needs Triton's kernels"
            yield _clash(config, key, "compute.kernels", expects, _LEAVE_OUT)


def _device(config: Config) -> Iterator[Contradiction]:
    """GPUs that are asked for and refused at once."""
    device, gpus = config.trainer.device, config.trainer.gpus
    if device == "cpu" and gpus not in ("auto", 0):
        expects = "0 or auto with trainer.device=cpu"
        yield _clash(config, "trainer.gpus", "trainer.device", expects, _LEAVE_OUT)
    elif device not in ("auto", "cpu") and gpus == 0:
        expects = f"auto or a number above 0 with trainer.device={device}"
        yield _clash(config, "trainer.gpus", "trainer.device", expects, _LEAVE_OUT)


def _training(config: Config) -> Iterator[Contradiction]:
    trainer, ranks = config.trainer, config.distributed.num_processes
    if trainer.warmup_epochs > trainer.epochs:
        expects = f"at most trainer.epochs={trainer.epochs}"
        yield _clash(config, "trainer.warmup_epochs", "trainer.epochs", expects)
    if trainer.scheduler == "plateau" and trainer.warmup_epochs:
        expects = "0 with trainer.scheduler=plateau, which sets the rate by the metric alone"
        yield _clash(config, "trainer.warmup_epochs", "trainer.scheduler", expects)
    on_cpu = trainer.device == "cpu" or trainer.gpus == 0
    if on_cpu and trainer.precision == "fp16":
        yield ("trainer.gpus", "trainer.device", "trainer.precision"), _fp16(config)
    if trainer.gpus not in ("auto", 0) and ranks > 1:
        yield ("distributed.num_processes", "trainer.gpus"), _two_kinds_of_ranks(config)


def _fp16(config: Config) -> Problem:
    expects = "bf16 or fp32 on the CPU: fp16 needs a GPU"
    return _wrong(config, "trainer.precision", expects, "write trainer.precision=bf16")


def _two_kinds_of_ranks(config: Config) -> Problem:
    expects = f"1 with trainer.gpus={config.trainer.gpus}: it counts CPU ranks; each GPU is a rank"
    hint = "leave it out, or write trainer.gpus=0"
    return _wrong(config, "distributed.num_processes", expects, hint)


def _task(config: Config) -> Iterator[Contradiction]:
    """Keys of a classification beside those of a regression."""
    data, task = config.dataset, config.task
    is_regression = task.type == "node_regression"
    hint = _LEAVE_OUT if is_regression else "write task.type=node_regression"
    if isinstance(data, FilesConfig):
        if data.task != "auto" and is_regression != (data.task == "regression"):
            expects = f"{'regression' if is_regression else 'classes'} with task.type={task.type}"
            yield _clash(config, "dataset.task", "task.type", expects, hint)
    elif is_regression and data.name in DATASET_NAMES:
        expects = f"node_classification: the labels of {data.name} are classes"
        yield _clash(config, "task.type", "dataset.name", expects, hint)
    if not is_regression and task.loss != "mse":
        expects = f"mse, which has no effect, with task.type={task.type}"
        yield _clash(config, "task.loss", "task.type", expects, hint)
    if is_regression and task.positive_class is not None:
        expects = "null: a regression has no classes"
        yield _clash(config, "task.positive_class", "task.type", expects, hint)
    for key, default in (("label_smoothing", 0.0), ("class_weights", "none")):
        if is_regression and getattr(config.trainer, key) != default:
            expects = f"{shown(default)}: a regression has no classes"
            yield _clash(config, f"trainer.{key}", "task.type", expects, hint)


def _partitioned(config: Config) -> Iterator[Contradiction]:
    """The folder of a graph in parts."""
    graph, parts = config.distributed.graph, config.distributed.parts
    keys = "distributed.parts", "distributed.graph"
    if graph != "partitioned":
        if parts is not None:
            yield _clash(config, *keys, f"null with distributed.graph={graph}", _LEAVE_OUT)
        return
    if parts is None:
        expects = "the folder of the parts with distributed.graph=partitioned"
        yield _clash(config, *keys, expects, "make one with gnntrain partition")
    evaluation = config.evaluation
    if evaluation.name == "layerwise" and evaluation.ranks != "all":
        expects = "all with distributed.graph=partitioned: no machine has all edges"
        yield _clash(config, "evaluation.ranks", "distributed.graph", expects, _LEAVE_OUT)


def _owners_draw(config: Config) -> Iterator[Contradiction]:
    """What cannot be done where other ranks hold the graph and draw."""
    keys, sampler, features = config.distributed, config.sampler, config.features
    if keys.servers:
        other, value = "distributed.servers", str(keys.servers)
    elif keys.graph == "partitioned":
        other, value = "distributed.graph", keys.graph
    else:
        return
    clashes = [
        ("sampler.backend", sampler.backend not in ("auto", "numba"), "auto"),
        ("sampler.topology", sampler.topology not in ("auto", "host"), "auto"),
        ("trainer.cuda_graph", config.trainer.cuda_graph, "false"),
        ("sampler.name", sampler.name == "full", "neighbor"),
        ("features.placement", features.placement not in ("auto", "memmap"), "auto"),
    ]
    for key, is_wrong, instead in clashes:
        if is_wrong:
            expects = f"{instead} with {other}={value}: the ranks that hold the graph draw"
            yield _clash(config, key, other, expects, _LEAVE_OUT)


def _typed(config: Config) -> Iterator[Contradiction]:
    """What a model of typed graphs cannot do: the CPU draws, and a GPU caches no rows."""
    sampler, features, is_sharded = config.sampler, config.features, _shares_rows(config)
    placements = ("auto", "resident", "pinned", "memmap")
    clashes = [
        ("sampler.backend", sampler.backend == "triton", "auto"),
        ("sampler.topology", sampler.topology not in ("auto", "host"), "auto"),
        ("features.placement", features.placement not in placements, " or ".join(placements)),
        ("features.cache_ratio", features.cache_ratio is not None and not is_sharded, "null"),
        ("features.cache_bytes", features.cache_bytes is not None and not is_sharded, "null"),
        ("trainer.cuda_graph", config.trainer.cuda_graph, "false"),
    ]
    for key, is_wrong, instead in clashes:
        if is_wrong:
            expects = f"{instead} with model.name={config.model.name}, a model of typed graphs"
            yield _clash(config, key, "model.name", expects, _LEAVE_OUT)
    model: Any = config.model
    if getattr(model, "featureless", None) == "one_hot" and model.embedding_channels is not None:
        key, other = "model.embedding_channels", "model.featureless"
        yield _clash(config, key, other, f"null with {other}=one_hot", f"write {other}=embedding")


def _shares_rows(config: Config) -> bool:
    """Whether machines ask others for feature rows."""
    return config.distributed.graph != "replicated" or config.distributed.servers > 0


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
    wholes: tuple[Literal["data", "schema"], ...] = ("data", "schema")
    whole = next((key for key in wholes if getattr(data, key)), None)
    yield from _missing_roles(data) if whole is None else _files_of_no_use(data, whole)
    for key in ("data", "schema", *_ROLES):
        path = getattr(data, key)
        if isinstance(path, str) and not is_file(path):
            expects, near = _why_missing(Path(path))
            elsewhere = "set dataset.root to the files' folder" if data.root is None else None
            yield Problem(f"dataset.{key}", path, expects, near or elsewhere)


def _missing_roles(data: FilesConfig) -> Iterator[Problem]:
    for key in ("edges", "features"):
        if getattr(data, key) is None:
            hint = (
                f"write dataset.{key}=FILE, dataset.schema=FILE for a typed graph, or "
                "dataset.data=FILE for a whole graph"
            )
            yield Problem(f"dataset.{key}", "null", f"the file of {key}", hint)


def _files_of_no_use(data: FilesConfig, whole: Literal["data", "schema"]) -> Iterator[Problem]:
    """Files and, where a schema says all of tables, columns beside the key of a whole graph."""
    by_schema = whole == "schema"
    what = "names the files" if by_schema else "is a whole graph"
    for key in _ROLES if by_schema else ("schema", *_ROLES):
        path = getattr(data, key)
        if isinstance(path, str):
            expects = f"no file: dataset.{whole} {what}"
            yield Problem(f"dataset.{key}", path, expects, "leave one of the two out")
    for key in _COLUMN_KEYS if by_schema else ():
        value = getattr(data, key)
        if value:
            expects = "no value: dataset.schema names the columns"
            yield Problem(f"dataset.{key}", shown(value), expects, "write it in the schema")


def _why_missing(path: Path) -> tuple[str, str | None]:
    """What is wrong with the path of a file, and the nearest one that is there."""
    if is_folder(path):
        return "a file, but this is a folder", None
    if not is_folder(path.parent):
        return f"a file, but there is no folder {path.parent}", None
    found = nearest(path.name, file_names(path.parent))
    return "a file, but there is none", None if found is None else f"did you mean {found}?"


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
    return (
        trainer.device != "auto"
        or trainer.gpus != "auto"
        or trainer.precision == "fp16"
        or trainer.cuda_graph
        or config.compute.kernels == "triton"
        or config.sampler.backend == "triton"
        or config.sampler.topology != "auto"
        or config.features.placement != "auto"
        or config.distributed.num_processes > 1
    )


def machine_problems(config: Config, found: Mapping[str, int]) -> list[Problem]:
    """What this machine lacks: GPUs, and the libraries that a sampling backend or a logger needs.

    Args:
        config: The configuration.
        found: How many GPUs torch sees, by their type; anything where `needs_gpu_count` is false.
    """
    kind, num_gpus = training_device(config.trainer, found)
    return [
        *_gpu_problems(config, found),
        *_kernel_problems(config, kind),
        *_rank_problems(config),
        *_backend_problems(config, kind),
        *_placement_problems(config, kind, num_gpus),
        *_logger_problems(config),
    ]


def _rank_problems(config: Config) -> Iterator[Problem]:
    """More ranks than a machine can bear; a few more than cores are for trying things out."""
    asked = config.distributed.num_processes
    if asked <= _ALWAYS_RANKS:
        return
    cores, memory = available_cores(), total_memory()
    by_cores = max(_ALWAYS_RANKS, _RANKS_A_CORE * cores)
    by_memory = max(_ALWAYS_RANKS, memory // _RANK_BYTES)
    if asked > by_cores:
        why = f"{_RANKS_A_CORE} times its {cores} core{'s' if cores > 1 else ''}"
    elif asked > by_memory:
        why = f"its {memory / 2**30:.0f} GiB of memory hold no more"
    else:
        return
    most = min(by_cores, by_memory)
    expects = f"at most {most} ranks on this machine: {why}"
    hint = f"write distributed.num_processes={cores}, a rank a core"
    yield _wrong(config, "distributed.num_processes", expects, hint)


def _gpu_problems(config: Config, found: Mapping[str, int]) -> Iterator[Problem]:
    trainer = config.trainer
    kind, wanted = training_device(trainer, found)
    if trainer.device not in ("auto", "cpu") and trainer.device not in found:
        yield _absent_device(config, found)
    elif wanted > (there := found.get(kind, 0)):
        here = "no GPU" if there == 0 else f"{there} GPU{'s' if there > 1 else ''}"
        hint = f"write trainer.gpus={there or '0 to train on the CPU'}"
        expects = f"at most {there}: torch sees {here} on this machine"
        yield _wrong(config, "trainer.gpus", expects, hint)
    elif trainer.gpus != "auto":
        return  # the same is said without a look at the machine
    elif wanted == 0 and trainer.precision == "fp16" and trainer.device != "cpu":
        yield _fp16(config)
    elif wanted > 0 and config.distributed.num_processes > 1:
        yield _two_kinds_of_ranks(config)


def _absent_device(config: Config, found: Mapping[str, int]) -> Problem:
    """A type of GPU that this machine, or this build of torch, does not have."""
    there = next(iter(found), "cpu")
    expects = f"{there}: torch sees no GPU of another kind on this machine"
    if there == "cpu":
        expects = "cpu: torch sees no GPU on this machine"
    hint = "`gnntrain doctor` says what torch sees; or leave it out: auto takes what there is"
    return _wrong(config, "trainer.device", expects, hint)


def _kernel_problems(config: Config, kind: str) -> Iterator[Problem]:
    """What needs Triton's kernels where Triton does not compile for the device."""
    lacks_package = kind == "cuda" and not find_spec("triton")
    if kind not in ("cpu", "cuda") or lacks_package:
        why = "the package triton is not installed"
        if not lacks_package:
            why = f"Triton's kernels do not run on {_name(kind)}"
        for key, instead in _triton_only(config):
            hint = _GET_TRITON if lacks_package else _LEAVE_OUT
            yield _wrong(config, key, f"{instead}: {why}", hint)
    if config.compute.kernels != "triton" or (kind == "cpu" and _interprets_triton()):
        return
    if kind != "cuda":
        expects = f"auto or torch on {_name(kind)}: Triton's kernels need GPUs of NVIDIA or AMD"
        yield _wrong(config, "compute.kernels", expects, _LEAVE_OUT)
    elif lacks_package:
        expects = "auto or torch: the package triton is not installed"
        yield _wrong(config, "compute.kernels", expects, _GET_TRITON)


def _name(kind: str) -> str:
    return _DEVICES.get(kind, f"devices of type {kind}")


def _interprets_triton() -> bool:
    """Whether Triton's interpreter computes its kernels on the CPU, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None


def _backend_problems(config: Config, kind: str) -> Iterator[Problem]:
    if config.sampler.name == "full":
        return
    backend = config.sampler.backend
    if backend == "triton" and kind == "cpu":
        expects = "numba, which samples on the CPU: triton samples on a GPU"
        yield _wrong(config, "sampler.backend", expects, f"{_LEAVE_OUT}: auto takes what fits")
    if backend == "pyg" and not (find_spec("pyg_lib") or find_spec("torch_sparse")):
        expects = "pyg-lib or torch-sparse, and neither is installed"
        get = "get pyg-lib from https://data.pyg.org/whl"
        hint = f"{get}, or leave it out: the built-in sampler needs nothing"
        yield _wrong(config, "sampler.backend", expects, hint)


def _placement_problems(config: Config, kind: str, gpus: int) -> Iterator[Problem]:
    """What is asked for of a GPU where none trains."""
    placement, topology = config.features.placement, config.sampler.topology
    if gpus == 0 and placement not in ("auto", "memmap"):
        expects = "auto or memmap on the CPU, which reads rows where the store has them"
        yield _wrong(config, "features.placement", expects, _LEAVE_OUT)
    elif placement == "wholegraph" and kind not in ("cpu", "cuda"):
        expects = f"another placement on {_name(kind)}: WholeGraph is NVIDIA's"
        yield _wrong(config, "features.placement", expects, f"{_LEAVE_OUT}: auto chooses")
    elif placement == "wholegraph" and find_spec("pylibwholegraph") is None:
        expects = "another placement: the package pylibwholegraph is not installed"
        hint = "`pip install pylibwholegraph-cu13`, or leave it out: auto chooses"
        yield _wrong(config, "features.placement", expects, hint)
    elif gpus == 1 and placement == "sharded":
        expects = "resident, cached, pinned or memmap on one GPU"
        yield _wrong(config, "features.placement", expects, f"{_LEAVE_OUT}: auto chooses")
    if gpus == 0 and topology in ("resident", "pinned"):
        yield _wrong(config, "sampler.topology", "auto or host on the CPU", _LEAVE_OUT)
    if config.trainer.cuda_graph and gpus != 1:
        expects = "false without a GPU" if gpus == 0 else "false on several GPUs"
        hint = f"{_LEAVE_OUT}, or write trainer.gpus=1"
        yield _wrong(config, "trainer.cuda_graph", expects, hint)


def _logger_problems(config: Config) -> Iterator[Problem]:
    chosen = config.logger.chosen()
    for name in ("tensorboard", "wandb", "mlflow"):
        if name in chosen and find_spec(name) is None:
            rest = ",".join(other for other in chosen if other != name)
            expects = f"loggers whose packages are installed: {name} is not"
            hint = f"`pip install {name}`, or write logger=[{rest}]"
            yield Problem("logger", shown(list(chosen)), expects, hint)
