"""What a run will need, from a dry run of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import numpy as np

from gnntrain.compute.products import product_note
from gnntrain.compute.selection import CPU_KERNELS
from gnntrain.config import Config, ConfigError, DatasetConfig, FilesConfig
from gnntrain.config.checks import machine_problems
from gnntrain.data.read.files import FilesBuilder
from gnntrain.data.store import META_FILE, StoredGraph
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.distributed.processes import refuse_unguarded_script, stopping_servers
from gnntrain.errors import UserError
from gnntrain.inventory import known_size
from gnntrain.limits import available_memory, total_memory
from gnntrain.paths import free_bytes
from gnntrain.planning.dry_run import Report, dry_run
from gnntrain.reporting import text
from gnntrain.reporting.rundir import RUNS
from gnntrain.reporting.tables import Check, Judgement, Section, checks, pairs
from gnntrain.reporting.text import counted, format_bytes, format_seconds, shown_path
from gnntrain.run import graph_sizes, refuse_untrainable
from gnntrain.run_store import object_dataset, prepare_store, store_folder

# Beyond this part of what is available, other programs slow down.
_TIGHT = 0.85
_LITTLE = 256 * 2**20  # bytes of a store that is built without asking
_CHECKPOINTS = 3  # last, the one before, best


@dataclass(frozen=True)
class Plan:
    """What a run will need."""

    config: Config
    graph: StoredGraph
    store_reason: str  # how the graph was opened
    launch: LaunchPlan  # its ranks
    ranks: Sequence[Report]  # what these measured
    began: float = field(default_factory=time.perf_counter)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """All figures as plain data for JSON."""
        graph, ranks, first, trainer = self.graph, self.ranks, self.ranks[0], self.config.trainer
        world_size = self.launch.world_size
        full, rest = divmod(len(graph.split("train")), trainer.batch_size * world_size)
        num_steps = full + (rest > 0 and not trainer.drop_last)
        if self.config.sampler.name == "full":
            num_steps = 1
        in_all = trainer.epochs * num_steps
        if trainer.max_steps is not None:  # it may break off the last epoch
            in_all = min(in_all, trainer.max_steps)
        num_epochs = -(-in_all // num_steps)
        num_evaluations = -(-num_epochs // trainer.eval_every)  # the last epoch has one
        sizes, others = first["batches"], world_size - 1
        # Means over a rank's first mini-batches; edges hop by hop, that of the seeds first.
        means = {key: np.mean([size[key] for size in sizes], axis=0).tolist() for key in sizes[0]}
        # A ring's all-reduce of dense gradients; all ranks gather those of tables' rows.
        reduced = 2 * others / world_size * 4 * first["num_dense"]
        reduced += others * means.pop("row_gradient_bytes")
        steps = [seconds for rank in ranks for seconds in rank["steps"]]
        step, cuts = fmean(steps), quantiles(steps, n=10, method="inclusive")
        evaluation = sum(rank["peak_bytes"] for rank in ranks)
        return {
            "dataset": graph.dataset,
            "model": self.config.model.name,
            "store": str(graph.path),
            **graph_sizes(graph),
            "num_classes": graph.num_classes,
            "num_parameters": first["num_parameters"],
            "world_size": world_size,
            "use_gpus": self.launch.use_gpus,
            "threads": self.launch.threads,
            "placement": first["placement"],
            "kernels": first["kernels"],
            "num_epochs": num_epochs,
            "num_steps": num_steps,
            "num_steps_in_all": in_all,
            "num_evaluations": num_evaluations,
            "batch": {"num_drawn": len(sizes), **means, "bytes_reduced": reduced},
            # Seconds, of a run without its start; the range holds the middle 80 % of the steps.
            "times": {
                "num_timed": len(steps) // len(ranks),
                "step": step,
                "step_range": [cuts[0], cuts[-1]],
                "training": step * min(num_steps, in_all),  # of an epoch
                "evaluation": first["evaluation"],
                "run": step * in_all + first["evaluation"] * num_evaluations,
            },
            # Bytes of all ranks together, until training and until evaluation ends.
            "memory": {
                "training": sum(rank["training_bytes"] for rank in ranks),
                "evaluation": evaluation,
                "shared": first["shared_bytes"],
                "on_disk": first["disk_bytes"],
                "store": graph.num_bytes,
                "needed": evaluation + first["shared_bytes"],  # what the system cannot drop
                "peak_rss": evaluation + sum(rank["mapped_bytes"] for rank in ranks),
                "peak_gpu": max(rank["gpu_bytes"] for rank in ranks),
            },
            "checkpoint_bytes": _CHECKPOINTS * first["checkpoint_bytes"],
        }

    @property
    def times(self) -> dict[str, Any]:
        """Seconds; see `figures`."""
        return {**self.figures["times"]}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes; see `figures`."""
        return {**self.figures["memory"]}

    @cached_property
    def checks(self) -> list[Check]:
        """Whether this machine suffices: its memory, page cache and disk."""
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
            seeds = min(asked, max(size["num_seeds"] for size in self.ranks[0]["batches"]))
            most = max(1, int(seeds * _TIGHT * available / max(1, needed)))
            smaller = f"Set trainer.batch_size={1 << (most.bit_length() - 1)} or less (now {asked})"
            smaller += ", or lower sampler.fan_outs, model.hidden_channels or the number of ranks."
        rows = "The system will read rows from disk again and again."
        if config.dataset.feature_dtype == "float32":
            rows += " Set dataset.feature_dtype=bfloat16 to halve the features."
        disk = "Set run.dir=DIR to a folder on a larger disk"
        disk += ", or evaluation=sampled." if memory["on_disk"] else "."
        written = memory["on_disk"] + self.figures["checkpoint_bytes"]
        left = max(0, total_memory() - needed)
        judged: list[tuple[str, int, int, str, Judgement]] = [
            ("memory", needed, available, smaller, "problem"),
            ("page cache", memory["store"], left, rows, "note"),
            ("disk", written, free_bytes(_runs_folder(config)), disk, "problem"),
        ]
        checks = []
        for name, size, there, hint, worst in judged:
            told = f"{format_bytes(size)} of {format_bytes(there)} available"
            is_ok = size <= _TIGHT * there
            judgement: Judgement = "ok" if is_ok else worst if size > there else "note"
            checks.append(Check(judgement, name, told, "" if is_ok else hint))
        return checks

    @property
    def fits(self) -> bool:
        """Whether no check found a problem."""
        return all(check.judgement != "problem" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """All figures and checks as plain data for JSON."""
        seconds = time.perf_counter() - self.began
        return {**self.figures, "checks": [*map(asdict, self.checks)], "seconds": seconds}

    def sections(self) -> Iterator[Section]:
        """All that the plan says, as labels and values."""
        graph, figures, use_gpus = self.graph, self.figures, self.launch.use_gpus
        batch, times, kernels = figures["batch"], figures["times"], figures["kernels"]
        width = graph.target_nodes.num_features
        inputs = text.counted_inputs(width, len(graph.nodes), len(graph.edges))
        products = product_note(self.config.trainer.precision)
        ranks = counted(figures["world_size"], "GPU rank" if use_gpus else "CPU rank")
        run = [
            ("graph", f"{graph.dataset}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges"),
            ("", f"{inputs}, {text.counted_outputs(graph.num_classes, graph.task)}"),
            ("store", self.store_reason),
            ("", shown_path(graph.path)),
            ("model", f"{figures['model']}, {figures['num_parameters']:,} parameters"),
            ("ranks", f"{ranks}, {counted(figures['threads'], 'thread')} each"),
            *(("", where) for where in figures["placement"]),
            ("", kernels if kernels != str(CPU_KERNELS) else ""),
            ("", "" if use_gpus else products),
        ]
        yield Section("run", [pairs(row for row in run if row[1])])
        moved = f"{format_bytes(batch['bytes_read'])} of features read"
        if batch["bytes_reduced"]:
            moved += f", {format_bytes(batch['bytes_reduced'])} of gradients sent"
        edges = " + ".join(f"{number:,.0f}" for number in batch["num_edges"]) or "0"
        rows = [
            ("nodes", f"{batch['num_seeds']:,.0f} seeds, {batch['num_nodes']:,.0f} in all"),
            ("edges", f"{edges} (the hop of the seeds first)"),
            ("bytes", moved),
        ]
        yield Section(f"a batch of one rank (mean of {batch['num_drawn']})", [pairs(rows)])
        steps = counted(min(figures["num_steps"], figures["num_steps_in_all"]), "step")
        epochs = counted(figures["num_epochs"], "epoch")
        evaluations = counted(figures["num_evaluations"], "evaluation")
        seconds = {name: format_seconds(times[name]) for name in times if name != "step_range"}
        training, evaluation = seconds["training"], seconds["evaluation"]
        shortest, longest = map(format_seconds, times["step_range"])
        rows = [
            ("step", f"{seconds['step']} ({shortest} to {longest})"),
            ("evaluation", evaluation),
            ("epoch", f"{training} training ({steps}) + {evaluation} evaluation"),
            ("run", f"{seconds['run']} ({epochs}, {evaluations})"),
        ]
        timed = counted(times["num_timed"], "step")
        yield Section(f"time ({timed} and one evaluation)", [pairs(rows)])
        memory = {name: size and format_bytes(size) for name, size in self.memory.items()}
        together = f" ({counted(len(self.ranks), 'rank')} together)" if len(self.ranks) > 1 else ""
        layers = f" + {memory['on_disk']} of layers, during evaluation" if memory["on_disk"] else ""
        rows = [
            ("training", f"{memory['training']}{together}"),
            ("evaluation", f"{memory['evaluation']}{together}"),
            ("shared", f"{memory['shared']} of layers, once" if memory["shared"] else ""),
            ("page cache", f"{memory['store']} of the store; the system can drop it"),
            ("peak", f"{memory['peak_rss']} resident (peak_rss_bytes in summary.json)"),
            ("GPU", f"{memory['peak_gpu']} of one GPU (peak_gpu_bytes)" * use_gpus),
            ("disk", f"{format_bytes(figures['checkpoint_bytes'])} of checkpoints{layers}"),
        ]
        yield Section("memory", [pairs(row for row in rows if row[1])])
        yield Section("does it fit?", [checks(self.checks)])
        whole = format_seconds(time.perf_counter() - self.began)
        kept = "nothing" if self.store_reason.startswith("opened") else "only the store"
        yield Section(f"planned in {whole}; {kept} was written", [])


def _runs_folder(config: Config) -> Path:
    return RUNS if config.run.dir is None else Path(config.run.dir).parent


def plan(config: Config, *, data: object = None) -> Plan:
    """What a run will need, by a dry run of it, as `gnntrain plan` says. Nothing is left behind.

    Args:
        config: The run's.
        data: See `gnntrain.run.train`.

    Raises:
        GnntrainError: The graph's store is not built yet, and large; or what training would refuse;
            or the dry run failed, also for lack of memory.
    """
    dataset = config.dataset
    if data is not None:
        config = config.model_copy(update={"dataset": object_dataset(dataset)})
    else:  # a large store is not built without asking
        folder, needed = store_folder(dataset), expected_bytes(dataset)
        if needed > _LITTLE and not (folder / META_FILE).is_file():
            size = known_size(dataset)
            sizes = {} if size is None else size._asdict()
            published = "".join(f"{number:,} {name[4:]}, " for name, number in sizes.items())
            raise UserError(
                f"the graph store of {dataset.name} is not built yet, and a dry run reads it: "
                f"{published}about {format_bytes(needed)} for {shown_path(folder)} "
                f"({format_bytes(free_bytes(folder))} are free)",
                "Run `gnntrain prepare` first; with dataset.store_dir=DIR elsewhere.",
            )
    if problems := machine_problems(config):
        raise ConfigError(problems)
    opened = prepare_store(config.dataset, data=data)
    refuse_unguarded_script()  # the dry run has a process of its own
    began, launch = time.perf_counter(), LaunchPlan.of(config)
    if launch.servers or config.distributed.graph == "partitioned":
        what = f"servers={launch.servers}" if launch.servers else "graph=partitioned"
        hint = "Plan it without: the batches are alike, the steps those of the ranks that train."
        raise UserError(f"A run with distributed.{what} cannot be planned.", hint)
    refuse_untrainable(config, opened.store, launch.world_size)
    with stopping_servers():
        ranks = dry_run(config, opened.store, _runs_folder(config))
    return Plan(config, opened.store, opened.reason, launch, ranks, began)


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
