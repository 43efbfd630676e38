"""What a run will need, from a dry run of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from gnntrain.config import (
    Config,
    ConfigError,
    DatasetConfig,
    FilesConfig,
    machine_problems,
    training_device,
)
from gnntrain.data.build import OpenedStore
from gnntrain.data.read.files import FilesBuilder
from gnntrain.data.store import META_FILE, StoredGraph
from gnntrain.devices import gpus_here, num_gpus
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.distributed.processes import refuse_unguarded_script, stopping_servers
from gnntrain.errors import UserError
from gnntrain.inventory.datasets import known_size
from gnntrain.limits import available_memory, total_memory
from gnntrain.paths import free_bytes
from gnntrain.planning.dry_run import RankReport, dry_run
from gnntrain.reporting.rundir import RUNS
from gnntrain.reporting.tables import Check, Judgement
from gnntrain.reporting.text import counted, format_bytes, shown_path
from gnntrain.run import graph_sizes, refuse_untrainable
from gnntrain.run_store import object_dataset, prepare_store, store_folder

# Beyond this part of what is available, other programs slow down.
_TIGHT = 0.85
_LITTLE = 256 * 2**20  # bytes of a store that is built without asking
_CHECKPOINTS = 3  # last, the one before, best


@dataclass(frozen=True)
class Plan:
    """What a run will need; the properties are its figures."""

    config: Config
    graph: StoredGraph
    store_reason: str  # how the graph was opened
    asked: LaunchPlan  # the ranks of the run
    measured: LaunchPlan  # those of the dry run: fewer where this machine lacks GPUs
    ranks: Sequence[RankReport]  # what these measured
    began: float = field(default_factory=time.perf_counter)

    @property
    def measured_on(self) -> str:
        """The rank that was measured in place of GPUs that are not here; else empty."""
        asked, measured = self.asked, self.measured
        kind, size = measured.use_gpus, measured.world_size
        return (
            ""
            if (asked.use_gpus, asked.world_size) == (kind, size)
            else counted(size, f"{'GPU' if kind else 'CPU'} rank")
        )

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        if self.config.sampler.name == "full":
            return 1
        global_batch = self.config.trainer.batch_size * self.asked.world_size
        full, rest = divmod(len(self.graph.split("train")), global_batch)
        return full + (rest > 0 and not self.config.trainer.drop_last)

    @property
    def num_steps_in_all(self) -> int:
        """Steps of the run."""
        steps, most = self.config.trainer.epochs * self.num_steps, self.config.trainer.max_steps
        return steps if most is None else min(steps, most)

    @property
    def num_epochs(self) -> int:
        """Epochs of the run; `trainer.max_steps` may break off the last one."""
        return -(-self.num_steps_in_all // self.num_steps)

    @property
    def num_evaluations(self) -> int:
        """Evaluations of the run: the last epoch has one."""
        return -(-self.num_epochs // self.config.trainer.eval_every)

    @property
    def batch(self) -> dict[str, Any]:
        """Means over a rank's first mini-batches; edges hop by hop, that of the seeds first."""
        sizes = self.ranks[0].batches
        means = {
            name: fmean(getattr(size, name) for size in sizes)
            for name in ("num_seeds", "num_nodes", "bytes_read", "row_gradient_bytes")
        }
        # A ring's all-reduce of the dense gradients; all ranks gather those of the tables' rows.
        others = self.asked.world_size - 1
        reduced = 2 * others / self.asked.world_size * 4 * self.ranks[0].num_dense
        reduced += others * means.pop("row_gradient_bytes")
        edges = [*map(fmean, zip(*(size.num_edges for size in sizes), strict=True))]
        return {"num_drawn": len(sizes), **means, "num_edges": edges, "bytes_reduced": reduced}

    @property
    def times(self) -> dict[str, Any]:
        """Seconds of a step, of an epoch's steps, of an evaluation and of the run, without its
        start; the range holds the middle 80 % of the steps."""
        steps = [seconds for rank in self.ranks for seconds in rank.steps]
        cuts = quantiles(steps, n=10, method="inclusive")
        step, evaluation = fmean(steps), self.ranks[0].evaluation
        return {
            "num_timed": len(steps) // len(self.ranks),
            "step": step,
            "step_range": [cuts[0], cuts[-1]],
            "training": step * min(self.num_steps, self.num_steps_in_all),
            "evaluation": evaluation,
            "run": step * self.num_steps_in_all + evaluation * self.num_evaluations,
        }

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of all ranks together; `training` and `evaluation` until the end of each, `needed`
        what the system cannot drop, `peak_rss` and `peak_gpu` as `summary.json` will say."""
        ranks = self.ranks
        evaluation = sum(rank.peak_bytes for rank in ranks)
        return {
            "training": sum(rank.training_bytes for rank in ranks),
            "evaluation": evaluation,
            "shared": ranks[0].shared_bytes,
            "on_disk": ranks[0].disk_bytes,
            "store": self.graph.num_bytes,
            "needed": evaluation + ranks[0].shared_bytes,
            "peak_rss": evaluation + sum(rank.mapped_bytes for rank in ranks),
            "peak_gpu": max(rank.gpu_bytes for rank in ranks),
        }

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the run directory's checkpoints."""
        return _CHECKPOINTS * self.ranks[0].checkpoint_bytes

    @property
    def checks(self) -> list[Check]:
        """Whether this machine suffices: its memory, page cache and disk."""
        if self.measured_on:
            here, asked = num_gpus(self.asked.device), self.asked.world_size
            text = f"{counted(asked, 'GPU')} are asked for, here are {counted(here, 'GPU')}: all "
            text += f"figures are of {self.measured_on}"
            hint = "Plan on the machine of the run for its time, and for GPU memory."
            return [Check("note", "GPUs", text, hint)]
        config, memory = self.config, self.memory
        needed, available = memory["needed"], available_memory()
        if needed > 1.2 * memory["training"]:
            limit = max(0.01, 0.1 * available / 2**30)
            smaller = f"Set evaluation.memory_limit={limit:.2g}: larger layers go to disk; or "
            smaller += "evaluation=sampled."
        elif config.sampler.name == "full":
            smaller = "Set sampler=neighbor, which trains in mini-batches."
        else:
            # Of the ranks' memory, libraries and the model stay: this is the most that can do.
            asked = config.trainer.batch_size
            seeds = min(asked, max(size.num_seeds for size in self.ranks[0].batches))
            most = max(1, int(seeds * _TIGHT * available / max(1, needed)))
            smaller = f"Set trainer.batch_size={1 << (most.bit_length() - 1)} or less (now {asked})"
            smaller += ", or lower sampler.fan_outs, model.hidden_channels or the number of ranks."
        rows = "The system will read rows from disk again and again."
        if config.dataset.feature_dtype == "float32":
            rows += " Set dataset.feature_dtype=bfloat16 to halve the features."
        disk = "Set run.dir=DIR to a folder on a larger disk"
        disk += ", or evaluation=sampled." if memory["on_disk"] else "."
        written, free = memory["on_disk"] + self.checkpoint_bytes, free_bytes(runs_folder(config))
        left = max(0, total_memory() - needed)
        judged: list[tuple[str, int, int, str, Judgement]] = [
            ("memory", needed, available, smaller, "problem"),
            ("page cache", memory["store"], left, rows, "note"),
            ("disk", written, free, disk, "problem"),
        ]
        checks = []
        for name, size, there, hint, worst in judged:
            text = f"{format_bytes(size)} of {format_bytes(there)} available"
            if size <= _TIGHT * there:
                checks.append(Check("ok", name, text))
            else:
                checks.append(Check(worst if size > there else "note", name, text, hint))
        return checks

    @property
    def fits(self) -> bool:
        """Whether no check found a problem."""
        return all(check.judgement != "problem" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain data for JSON."""
        graph = self.graph
        figures = ("measured_on", "num_epochs", "num_steps", "num_evaluations", "batch", "times")
        return {
            "dataset": graph.dataset,
            "model": self.config.model.name,
            "store": str(graph.path),
            **graph_sizes(graph),
            "num_classes": graph.num_classes,
            "num_parameters": self.ranks[0].num_parameters,
            "world_size": self.asked.world_size,
            "use_gpus": self.asked.use_gpus,
            "threads": self.measured.threads,
            "placement": self.ranks[0].placement,
            "kernels": self.ranks[0].kernels,
            **{name: getattr(self, name) for name in (*figures, "memory", "checkpoint_bytes")},
            "checks": [asdict(check) for check in self.checks],
            "seconds": time.perf_counter() - self.began,
        }


def plan(config: Config, *, data: object = None) -> Plan:
    """What a run will need, by a dry run of it, as `gnntrain plan` says. Nothing is left behind.

    Args:
        config: The run's; it may ask for more GPUs than this machine has.
        data: See `gnntrain.run.train`.

    Raises:
        GnntrainError: The graph's store is not built yet, and large; or what training would refuse;
            or the dry run failed, also for lack of memory.
    """
    if data is not None:
        config = config.model_copy(update={"dataset": object_dataset(config.dataset)})
        opened = prepare_store(config.dataset, data=data)
    else:
        opened = open_small_or_built(config.dataset)
    refuse_unguarded_script()  # the dry run has a process of its own
    began, found = time.perf_counter(), gpus_here()
    asked = LaunchPlan.of(config)
    for key, is_set in {
        f"servers={asked.servers}": asked.servers > 0,
        "graph=partitioned": config.distributed.graph == "partitioned",
    }.items():
        if is_set:
            hint = "Plan it without: its batches are those of the whole graph, its steps those of "
            hint += "the ranks that train."
            raise UserError(f"A run with distributed.{key} cannot be planned.", hint)
    refuse_untrainable(config, opened.store, asked.world_size)
    here = _measurable(config, found, len(opened.store.split("train")))
    if problems := machine_problems(here, lambda: found):
        raise ConfigError(problems)
    with stopping_servers():
        ranks = dry_run(here, opened.store, runs_folder(config))
    return Plan(config, opened.store, opened.reason, asked, LaunchPlan.of(here), ranks, began)


def runs_folder(config: Config) -> Path:
    """The folder of the run's directory."""
    return RUNS if config.run.dir is None else Path(config.run.dir).parent


def _measurable(config: Config, found: Mapping[str, int], num_seeds: int) -> Config:
    """`config`; where it asks for more GPUs than there are, the same for one rank here."""
    device, asked = training_device(config.trainer, found)
    num_gpus = found.get(device, 0)
    if asked <= num_gpus:
        return config
    batch_size = min(config.trainer.batch_size, -(-num_seeds // asked))  # as a rank of so many has
    trainer: dict[str, object] = {"gpus": min(1, num_gpus), "batch_size": batch_size}
    parts: dict[str, dict[str, object]] = {"trainer": trainer, "features": {"placement": "auto"}}
    if num_gpus == 0:
        trainer |= {"device": "cpu", "cuda_graph": False}
        trainer |= {"precision": "bf16"} if config.trainer.precision == "fp16" else {}
        parts |= {"compute": {"kernels": "auto"}} if config.compute.kernels == "triton" else {}
    if config.sampler.name == "neighbor":
        is_triton = config.sampler.backend == "triton"
        parts["sampler"] = {"topology": "auto", **({"backend": "auto"} if is_triton else {})}
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=new) for name, new in parts.items()}
    )


def open_small_or_built(dataset: DatasetConfig) -> OpenedStore:
    """Open the data set's store; build it first where it is small.

    Raises:
        UserError: It is large; with the published size of the graph.
    """
    folder, needed = store_folder(dataset), expected_bytes(dataset)
    if (folder / META_FILE).is_file() or needed <= _LITTLE:
        return prepare_store(dataset)
    free, hint = free_bytes(folder), "Run `gnntrain prepare` with the same keys first."
    if free < needed:
        hint = "Set dataset.store_dir=DIR to a folder on a larger disk, then run `prepare`."
    size = known_size(dataset)
    sizes = {} if size is None else size._asdict()
    published = "".join(f"{number:,} {name[4:]}, " for name, number in sizes.items())
    raise UserError(
        f"the graph store of {dataset.name} is not built yet, and a dry run reads it: {published}"
        f"about {format_bytes(needed)} for {shown_path(folder)} ({format_bytes(free)} are free)",
        hint,
    )


def expected_bytes(dataset: DatasetConfig) -> int:
    """About the bytes of a store before it is there."""
    if isinstance(dataset, FilesConfig):
        return sum(path.stat().st_size for path in FilesBuilder(dataset).paths)
    size = known_size(dataset)
    if size is None:  # an installed package's
        return 0
    width = 4 if dataset.feature_dtype == "float32" else 2
    a_node = width * size.num_features + 8 + 4 + 4 + 8  # offset, label, norm, split
    return size.num_nodes * a_node + 4 * size.num_edges
