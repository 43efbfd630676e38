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


def plan_sections(plan: Plan) -> Iterator[Section]:
    """All that the plan says."""
    graph, rank, asked, batch, times = plan.graph, plan.ranks[0], plan.asked, plan.batch, plan.times
    of_one = f", measured on {plan.measured_on}" if plan.measured_on else ""
    inputs = counted_inputs(graph.target_nodes.num_features, len(graph.nodes), len(graph.edges))
    products = product_note(plan.config.trainer.precision)
    threads = "" if of_one else f", {counted(plan.measured.threads, 'thread')} each"
    ranks = counted(asked.world_size, "GPU rank" if asked.use_gpus else "CPU rank")
    run = [
        ("graph", f"{graph.dataset}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges"),
        ("", f"{inputs}, {counted_outputs(graph.num_classes, graph.task)}"),
        ("store", plan.store_reason),
        ("", shown_path(graph.path)),
        ("model", f"{plan.config.model.name}, {rank.num_parameters:,} parameters"),
        ("ranks", f"{ranks}{threads}"),
        *(("", where) for where in rank.placement),
        *([("", rank.kernels)] if rank.kernels != str(CPU_KERNELS) else []),
        *([("", products)] if products and not asked.use_gpus else []),
    ]
    yield Section("run", [pairs(run)])
    edges = " + ".join(f"{number:,.0f}" for number in batch["num_edges"]) or "0"
    moved = f"{format_bytes(batch['bytes_read'])} of features read"
    if batch["bytes_reduced"]:
        moved += f", {format_bytes(batch['bytes_reduced'])} of gradients sent"
    sizes = [
        ("nodes", f"{batch['num_seeds']:,.0f} seeds, {batch['num_nodes']:,.0f} in all"),
        ("edges", f"{edges} (the hop of the seeds first)"),
        ("bytes", moved),
    ]
    yield Section(f"a batch of one rank (mean of {batch['num_drawn']})", [pairs(sizes)])
    steps = counted(min(plan.num_steps, plan.num_steps_in_all), "step")
    training, evaluation = format_seconds(times["training"]), format_seconds(times["evaluation"])
    whole = f"{counted(plan.num_epochs, 'epoch')}, {counted(plan.num_evaluations, 'evaluation')}"
    ends = " to ".join(map(format_seconds, times["step_range"]))
    rows = [
        ("step", f"{format_seconds(times['step'])} ({ends})"),
        ("evaluation", evaluation),
        ("epoch", f"{training} training ({steps}) + {evaluation} evaluation"),
        ("run", f"{format_seconds(times['run'])} ({whole})"),
    ]
    timed = counted(times["num_timed"], "step")
    yield Section(f"time ({timed} and one evaluation{of_one})", [pairs(rows)])
    memory = {name: format_bytes(number) for name, number in plan.memory.items()}
    together = f" ({counted(len(plan.ranks), 'rank')} together)" if len(plan.ranks) > 1 else ""
    rows = [
        ("training", f"{memory['training']}{together}"),
        ("evaluation", f"{memory['evaluation']}{together}"),
        *([("shared", f"{memory['shared']} of layers, once")] if plan.memory["shared"] else []),
        ("page cache", f"{memory['store']} of the store; the system can drop it"),
        ("peak", f"{memory['peak_rss']} resident (peak_rss_bytes in summary.json)"),
    ]
    if asked.use_gpus:
        measured = f"{memory['peak_gpu']} of one GPU (peak_gpu_bytes)"
        rows.append(("GPU", measured if plan.memory["peak_gpu"] else "not measured: no GPU here"))
    layers = f" + {memory['on_disk']} of layers, during evaluation" * (plan.memory["on_disk"] > 0)
    rows.append(("disk", f"{format_bytes(plan.checkpoint_bytes)} of checkpoints{layers}"))
    yield Section(f"memory{of_one}", [pairs(rows)])
    yield Section("does it fit?", [checks(plan.checks)])
    seconds = format_seconds(time.perf_counter() - plan.began)
    kept = "nothing" if plan.store_reason.startswith("opened") else "only the store"
    yield Section(f"planned in {seconds}; {kept} was written", [])
