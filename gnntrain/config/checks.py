"""Mistakes that no single key shows: keys that contradict each other, the files, the machine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from gnntrain.config.datasets import FilesConfig, SyntheticConfig
from gnntrain.config.models import PluginConfig
from gnntrain.config.names import DATASET_NAMES
from gnntrain.config.problems import Problem, nearest, shown
from gnntrain.config.schema import Config
from gnntrain.config.types import Divides
from gnntrain.cores import available_cores
from gnntrain.paths import file_names, is_file, is_folder

# Ranks that any machine may try; beyond, some a core, and what a rank takes before it has begun.
_ALWAYS_RANKS = 8
_RANKS_A_CORE = 4
_RANK_BYTES = 256 * 2**20

Contradiction = tuple[tuple[str, ...], Problem]
"""The keys that are compared, and the problem if they do not go together."""


def contradictions(config: Config) -> Iterator[Contradiction]:
    """The keys that cannot be as they are because of each other."""
    yield from _fan_outs(config)
    yield from _divisors(config)
    yield from _synthetic(config)
    yield from _loader_threads(config)
    yield from _training(config)
    yield from _topology(config)
    yield from _cuda_graph(config)
    yield from _task(config)


def _fan_outs(config: Config) -> Iterator[Contradiction]:
    if not config.model.uses_graph:
        return
    compared = []
    if config.sampler.name == "neighbor":
        compared.append(("sampler.fan_outs", config.sampler.fan_outs))
    if config.evaluation.name == "sampled":
        given = config.evaluation.fan_outs
        if given is not None:
            compared.append(("evaluation.fan_outs", given))
        elif config.sampler.name == "full":
            compared.append(("evaluation.fan_outs", config.sampler.fan_outs))
    num_layers = config.model.num_layers
    for key, fan_outs in compared:
        if len(fan_outs) != num_layers:
            problem = Problem(
                key,
                shown(fan_outs),
                f"one number a layer: model.num_layers={num_layers}",
                f"write {key}={shown(_resized(fan_outs, num_layers))}"
                f" or model.num_layers={len(fan_outs)}",
            )
            yield (key, "sampler.fan_outs", "model.num_layers", "model.name"), problem


def _resized(fan_outs: tuple[int, ...], length: int) -> tuple[int, ...]:
    if length > 8:
        return fan_outs
    return (fan_outs + fan_outs[-1:] * length)[:length]


def _divisors(config: Config) -> Iterator[Contradiction]:
    """The model's keys that must divide another one, as heads must divide hidden_channels."""
    model = config.model
    for key, field in type(model).model_fields.items():
        for other in (item.key for item in field.metadata if isinstance(item, Divides)):
            divisor, whole = getattr(model, key), getattr(model, other)
            if whole % divisor:
                below = max(n for n in range(1, divisor + 1) if whole % n == 0)
                above = whole + -whole % divisor
                problem = Problem(
                    f"model.{key}",
                    str(divisor),
                    f"a divisor of model.{other}={whole}",
                    f"write model.{key}={below} or model.{other}={above}",
                )
                yield (f"model.{key}", f"model.{other}"), problem


def _synthetic(config: Config) -> Iterator[Contradiction]:
    data = config.dataset
    if not isinstance(data, SyntheticConfig):
        return
    num_nodes = data.num_nodes
    splits = {"num_train": data.num_train, "num_val": data.num_val, "num_test": data.num_test}
    given = {key: size for key, size in splits.items() if size is not None}
    most_edges = num_nodes * (num_nodes - 1)
    nodes = f"dataset.num_nodes={num_nodes}"
    if data.num_classes > num_nodes:
        yield _synthetic_problem("num_classes", data.num_classes, f"at most {nodes}")
    if sum(given.values()) > num_nodes:
        key = max(given, key=lambda split: given[split])
        total = " + ".join(f"{size}" for size in given.values())
        parts = " + ".join(given)
        expects = f"{parts} = {total} = {sum(given.values())} to be at most {nodes}"
        yield _synthetic_problem(key, given[key], expects, *given)
    if data.num_edges is not None and data.num_edges % 2:
        hint = f"write dataset.num_edges={data.num_edges + 1}"
        expects = "an even number: each edge is stored in both directions"
        yield _synthetic_problem("num_edges", data.num_edges, expects, hint=hint)
    if data.num_edges is not None and data.num_edges > most_edges:
        expects = f"at most {most_edges}, all pairs of {nodes}"
        yield _synthetic_problem("num_edges", data.num_edges, expects)
    if data.num_edges is None and data.avg_degree > num_nodes - 1:
        expects = f"at most {num_nodes - 1}, since {nodes}"
        yield _synthetic_problem("avg_degree", data.avg_degree, expects)


def _synthetic_problem(
    key: str, value: object, expects: str, *others: str, hint: str | None = None
) -> Contradiction:
    keys = tuple(f"dataset.{name}" for name in (key, "num_nodes", *others))
    return keys, Problem(f"dataset.{key}", shown(value), expects, hint)


def _loader_threads(config: Config) -> Iterator[Contradiction]:
    sampler = config.sampler
    if sampler.backend == "pyg" and sampler.threads:
        keys = ("sampler.threads", "sampler.backend")
        expects = "0 or null with sampler.backend=pyg, which draws from dropout's generator"
        yield keys, Problem(keys[0], str(sampler.threads), expects, "leave it out")


def _topology(config: Config) -> Iterator[Contradiction]:
    sampler, keys = config.sampler, ("sampler.topology", "sampler.backend")
    if sampler.backend == "triton" and sampler.topology == "host":
        expects = "resident, pinned or auto with sampler.backend=triton, which draws on the GPU"
        yield keys, Problem(keys[0], "host", expects, "write sampler.backend=numba")
    elif sampler.backend in ("numba", "pyg") and sampler.topology in ("resident", "pinned"):
        expects = f"host or auto with sampler.backend={sampler.backend}, which draws on the CPU"
        yield keys, Problem(keys[0], sampler.topology, expects, "write sampler.backend=triton")


def _cuda_graph(config: Config) -> Iterator[Contradiction]:
    """What a step that is replayed as it was recorded cannot do."""
    if not config.trainer.cuda_graph:
        return
    hindrances = [
        ("sampler.name", config.sampler.name == "full", "neighbor"),
        ("sampler.backend", config.sampler.backend in ("numba", "pyg"), "triton"),
        ("sampler.topology", config.sampler.topology == "host", "auto"),
        ("sampler.fan_outs", min(config.sampler.fan_outs) < 1, "numbers >= 1: -1 has no bound"),
        ("features.placement", config.features.placement == "memmap", "auto"),
        ("model.norm", getattr(config.model, "norm", "none") == "batch", "layer or none"),
        ("model.name", isinstance(config.model, PluginConfig), "a model of gnntrain's own"),
        ("trainer.precision", config.trainer.precision == "fp16", "bf16"),
        ("trainer.on_nonfinite", config.trainer.on_nonfinite == "skip", "stop"),
        ("trainer.compile", config.trainer.compile, "false"),
        ("trainer.gpus", config.trainer.gpus not in ("auto", 1), "1"),
    ]
    for key, hinders, instead in hindrances:
        if hinders:
            expects = f"false unless {key} is {instead}"
            yield ("trainer.cuda_graph", key), Problem("trainer.cuda_graph", "true", expects)


def _training(config: Config) -> Iterator[Contradiction]:
    trainer, ranks = config.trainer, config.distributed.num_processes
    if trainer.warmup_epochs > trainer.epochs:
        expects = f"at most trainer.epochs={trainer.epochs}"
        keys = ("trainer.warmup_epochs", "trainer.epochs")
        yield keys, Problem(keys[0], str(trainer.warmup_epochs), expects)
    if trainer.scheduler == "plateau" and trainer.warmup_epochs:
        keys = ("trainer.warmup_epochs", "trainer.scheduler")
        expects = "0 with trainer.scheduler=plateau, which sets the rate by the metric alone"
        yield keys, Problem(keys[0], str(trainer.warmup_epochs), expects)
    if trainer.gpus == 0 and trainer.precision == "fp16":
        yield ("trainer.gpus", "trainer.precision"), _fp16()
    if trainer.gpus not in ("auto", 0) and ranks > 1:
        keys = ("distributed.num_processes", "trainer.gpus")
        yield keys, _two_kinds_of_ranks(config)


def _fp16() -> Problem:
    return Problem(
        "trainer.precision",
        "fp16",
        "bf16 or fp32 on the CPU: fp16 needs a GPU",
        "write trainer.precision=bf16",
    )


def _two_kinds_of_ranks(config: Config) -> Problem:
    return Problem(
        "distributed.num_processes",
        str(config.distributed.num_processes),
        f"1 with trainer.gpus={config.trainer.gpus}: it counts CPU ranks; each GPU is a rank",
        "leave it out, or write trainer.gpus=0",
    )


def _task(config: Config) -> Iterator[Contradiction]:
    """Keys of a classification beside those of a regression."""
    data, task, trainer = config.dataset, config.task, config.trainer
    is_regression = task.type == "node_regression"
    hint = "leave it out" if is_regression else "write task.type=node_regression"
    if isinstance(data, FilesConfig):
        if data.task != "auto" and is_regression != (data.task == "regression"):
            expects = f"{'regression' if is_regression else 'classes'} with task.type={task.type}"
            yield ("dataset.task", "task.type"), Problem("dataset.task", data.task, expects, hint)
    elif is_regression and data.name in DATASET_NAMES:
        expects = f"node_classification: the labels of {data.name} are classes"
        yield ("task.type", "dataset.name"), Problem("task.type", task.type, expects, hint)
    if not is_regression and task.loss != "mse":
        expects = f"mse, which has no effect, with task.type={task.type}"
        yield ("task.loss", "task.type"), Problem("task.loss", task.loss, expects, hint)
    for key, default in (("label_smoothing", 0.0), ("class_weights", "none")):
        value = getattr(trainer, key)
        if is_regression and value != default:
            keys = (f"trainer.{key}", "task.type")
            expects = f"{shown(default)}: a regression has no classes"
            yield keys, Problem(keys[0], shown(value), expects, hint)


def missing_files(config: Config) -> Iterator[Problem]:
    """Files in place of folders, and the files of `dataset=files` that are not there."""
    data = config.dataset
    for key in ("root", "store_dir"):
        folder = getattr(data, key)
        if folder is not None and is_file(folder):
            yield Problem(f"dataset.{key}", folder, "a folder, but this is a file")
    if not isinstance(data, FilesConfig):
        return
    yield from _files_of_no_use(data) if data.data else _missing_roles(data)
    for key in ("data", "edges", "features", "labels", "split"):
        path = getattr(data, key)
        if isinstance(path, str) and not is_file(path):
            expects, near = _why_missing(Path(path))
            elsewhere = "set dataset.root to the files' folder" if data.root is None else None
            yield Problem(f"dataset.{key}", path, expects, near or elsewhere)


def _missing_roles(data: FilesConfig) -> Iterator[Problem]:
    for key in ("edges", "features"):
        if getattr(data, key) is None:
            hint = f"write dataset.{key}=FILE, or dataset.data=FILE for a whole graph"
            yield Problem(f"dataset.{key}", "null", f"the file of {key}", hint)


def _files_of_no_use(data: FilesConfig) -> Iterator[Problem]:
    for key in ("edges", "features", "labels", "split"):
        path = getattr(data, key)
        if isinstance(path, str):
            expects = "no file: dataset.data is a whole graph"
            yield Problem(f"dataset.{key}", path, expects, "leave one of the two out")


def _why_missing(path: Path) -> tuple[str, str | None]:
    """What is wrong with the path of a file, and the nearest one that is there."""
    if is_folder(path):
        return "a file, but this is a folder", None
    if not is_folder(path.parent):
        return f"a file, but there is no folder {path.parent}", None
    found = nearest(path.name, file_names(path.parent))
    return "a file, but there is none", None if found is None else f"did you mean {found}?"


def needs_gpu_count(config: Config) -> bool:
    """Whether `machine_problems` depends on the GPUs; to count them costs an import of torch."""
    trainer = config.trainer
    if trainer.gpus == "auto":
        placed = config.features.placement != "auto" or config.sampler.topology != "auto"
        depends = trainer.precision == "fp16" or config.sampler.backend == "triton"
        return depends or placed or trainer.cuda_graph or config.distributed.num_processes > 1
    return trainer.gpus > 0


def machine_problems(config: Config, num_gpus: int) -> list[Problem]:
    """What this machine lacks: GPUs, and the libraries that a sampling backend or a logger needs.

    Args:
        config: The configuration.
        num_gpus: GPUs that torch sees; any number where `needs_gpu_count` is false.
    """
    return [
        *_gpu_problems(config, num_gpus),
        *_rank_problems(config),
        *_backend_problems(config, num_gpus),
        *_placement_problems(config, num_gpus),
        *_logger_problems(config),
    ]


def _rank_problems(config: Config) -> Iterator[Problem]:
    """More ranks than a machine can bear; a few more than cores are for trying things out."""
    asked = config.distributed.num_processes
    if asked <= _ALWAYS_RANKS:
        return
    import psutil  # not for every start

    cores, memory = available_cores(), psutil.virtual_memory().total
    by_cores = max(_ALWAYS_RANKS, _RANKS_A_CORE * cores)
    by_memory = max(_ALWAYS_RANKS, memory // _RANK_BYTES)
    if asked > by_cores:
        why = f"{_RANKS_A_CORE} times its {cores} core{'s' if cores > 1 else ''}"
    elif asked > by_memory:
        why = f"its {memory / 2**30:.0f} GiB of memory hold no more"
    else:
        return
    most = min(by_cores, by_memory)
    yield Problem(
        "distributed.num_processes",
        str(asked),
        f"at most {most} ranks on this machine: {why}",
        f"write distributed.num_processes={cores}, a rank a core",
    )


def _gpu_problems(config: Config, num_gpus: int) -> Iterator[Problem]:
    trainer = config.trainer
    here = "no GPU" if num_gpus == 0 else f"{num_gpus} GPU{'s' if num_gpus > 1 else ''}"
    if trainer.gpus != "auto":
        if trainer.gpus > num_gpus:
            hint = f"write trainer.gpus={num_gpus or '0 to train on the CPU'}"
            expects = f"at most {num_gpus}: torch sees {here} on this machine"
            yield Problem("trainer.gpus", str(trainer.gpus), expects, hint)
    elif num_gpus == 0 and trainer.precision == "fp16":
        yield _fp16()
    elif num_gpus > 0 and config.distributed.num_processes > 1:
        yield _two_kinds_of_ranks(config)


def _backend_problems(config: Config, num_gpus: int) -> Iterator[Problem]:
    if config.sampler.name == "full":
        return
    backend = config.sampler.backend
    gpus = num_gpus if config.trainer.gpus == "auto" else config.trainer.gpus
    if backend == "triton" and gpus == 0:
        expects = "numba, which samples on the CPU: triton samples on a GPU"
        yield Problem("sampler.backend", backend, expects, "leave it out: auto takes what fits")
    elif backend == "triton" and not find_spec("triton"):
        expects = "numba, which samples on the CPU: the package triton is not installed"
        hint = "`pip install triton`, which comes with torch's CUDA builds for Linux"
        yield Problem("sampler.backend", backend, expects, hint)
    if backend == "pyg" and not (find_spec("pyg_lib") or find_spec("torch_sparse")):
        yield Problem(
            "sampler.backend",
            backend,
            "pyg-lib or torch-sparse, and neither is installed",
            "get pyg-lib from https://data.pyg.org/whl, or leave it out: "
            "the built-in sampler needs nothing",
        )


def _placement_problems(config: Config, num_gpus: int) -> Iterator[Problem]:
    """What is asked for of a GPU where none trains."""
    gpus = num_gpus if config.trainer.gpus == "auto" else config.trainer.gpus
    placement, topology = config.features.placement, config.sampler.topology
    if gpus == 0 and placement not in ("auto", "memmap"):
        expects = "auto or memmap on the CPU, which reads rows where the store has them"
        yield Problem("features.placement", placement, expects, "leave it out")
    elif gpus == 1 and placement == "sharded":
        expects = "resident, cached, pinned or memmap on one GPU"
        yield Problem("features.placement", placement, expects, "leave it out: auto chooses")
    if gpus == 0 and topology in ("resident", "pinned"):
        expects = "auto or host on the CPU"
        yield Problem("sampler.topology", topology, expects, "leave it out")
    if config.trainer.cuda_graph and gpus != 1:
        expects = "false without a GPU" if gpus == 0 else "false on several GPUs"
        yield Problem("trainer.cuda_graph", "true", expects, "leave it out, or trainer.gpus=1")


def _logger_problems(config: Config) -> Iterator[Problem]:
    chosen = config.logger.chosen()
    for name in ("tensorboard", "wandb", "mlflow"):
        if name in chosen and find_spec(name) is None:
            rest = ",".join(other for other in chosen if other != name)
            yield Problem(
                "logger",
                shown(list(chosen)),
                f"loggers whose packages are installed: {name} is not",
                f"`pip install {name}`, or write logger=[{rest}]",
            )
