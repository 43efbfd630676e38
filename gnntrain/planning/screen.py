"""A plan as sections of labels and values."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gnntrain.compute.products import product_note
from gnntrain.compute.selection import CPU_KERNELS
from gnntrain.planning.plan import Plan
from gnntrain.reporting.tables import Section, checks, pairs
from gnntrain.reporting.text import (
    counted,
    counted_inputs,
    counted_outputs,
    format_bytes,
    format_seconds,
    shown_path,
)

Pairs = list[tuple[str, str]]


def plan_sections(plan: Plan) -> Iterator[Section]:
    """All that the plan says."""
    of_one = f", measured on {plan.measured_on}" if plan.measured_on else ""
    num_timed, num_drawn = counted(plan.times["num_timed"], "step"), plan.batch["num_drawn"]
    yield Section("run", [pairs(_run(plan))])
    yield Section(f"a batch of one rank (mean of {num_drawn})", [pairs(_batch(plan))])
    yield Section(f"time ({num_timed} and one evaluation{of_one})", [pairs(_time(plan))])
    yield Section(f"memory{of_one}", [pairs(_memory(plan))])
    yield Section("does it fit?", [checks(plan.checks)])
    seconds = format_seconds(time.perf_counter() - plan.began)
    kept = "nothing" if plan.store_reason.startswith("opened") else "only the store"
    yield Section(f"planned in {seconds}; {kept} was written", [])


def _run(plan: Plan) -> Pairs:
    graph, kind = plan.graph, "GPU" if plan.asked.use_gpus else "CPU"
    inputs = counted_inputs(graph.target_nodes.num_features, len(graph.nodes), len(graph.edges))
    outputs = counted_outputs(graph.num_classes, graph.task)
    kernels = plan.ranks[0].kernels
    products = product_note(plan.config.trainer.precision)
    threads = "" if plan.measured_on else f", {counted(plan.measured.threads, 'thread')} each"
    return [
        ("graph", f"{graph.dataset}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges"),
        ("", f"{inputs}, {outputs}"),
        ("store", plan.store_reason),
        ("", shown_path(graph.path)),
        ("model", f"{plan.config.model.name}, {plan.ranks[0].num_parameters:,} parameters"),
        ("ranks", f"{counted(plan.asked.world_size, f'{kind} rank')}{threads}"),
        *(("", where) for where in plan.ranks[0].placement),
        *([("", kernels)] if kernels != str(CPU_KERNELS) else []),
        *([("", products)] if products and not plan.asked.use_gpus else []),
    ]


def _batch(plan: Plan) -> Pairs:
    batch = plan.batch
    edges = " + ".join(f"{number:,.0f}" for number in batch["num_edges"]) or "0"
    moved = f"{format_bytes(batch['bytes_read'])} of features read"
    if batch["bytes_reduced"]:
        moved += f", {format_bytes(batch['bytes_reduced'])} of gradients sent"
    return [
        ("nodes", f"{batch['num_seeds']:,.0f} seeds, {batch['num_nodes']:,.0f} in all"),
        ("edges", f"{edges} (the hop of the seeds first)"),
        ("bytes", moved),
    ]


def _time(plan: Plan) -> Pairs:
    times = plan.times
    steps = counted(min(plan.num_steps, plan.num_steps_in_all), "step")
    training, evaluation = format_seconds(times["training"]), format_seconds(times["evaluation"])
    ends = map(format_seconds, times["step_range"])
    run = f"{counted(plan.num_epochs, 'epoch')}, {counted(plan.num_evaluations, 'evaluation')}"
    return [
        ("step", f"{format_seconds(times['step'])} ({' to '.join(ends)})"),
        ("evaluation", evaluation),
        ("epoch", f"{training} training ({steps}) + {evaluation} evaluation"),
        ("run", f"{format_seconds(times['run'])} ({run})"),
    ]


def _memory(plan: Plan) -> Pairs:
    memory = {name: format_bytes(number) for name, number in plan.memory.items()}
    together = f" ({counted(len(plan.ranks), 'rank')} together)" if len(plan.ranks) > 1 else ""
    rows = [
        ("training", f"{memory['training']}{together}"),
        ("evaluation", f"{memory['evaluation']}{together}"),
        *([("shared", f"{memory['shared']} of layers, once")] if plan.memory["shared"] else []),
        ("page cache", f"{memory['store']} of the store; the system can drop it"),
        ("peak", f"{memory['peak_rss']} resident (peak_rss_bytes in summary.json)"),
    ]
    if plan.asked.use_gpus:
        measured = f"{memory['peak_gpu']} of one GPU (peak_gpu_bytes)"
        rows.append(("GPU", measured if plan.memory["peak_gpu"] else "not measured: no GPU here"))
    layers = f" + {memory['on_disk']} of layers, during evaluation"
    disk = f"{format_bytes(plan.checkpoint_bytes)} of checkpoints"
    return [*rows, ("disk", disk + layers * (plan.memory["on_disk"] > 0))]
