"""A plan as sections of labels and values."""

from __future__ import annotations

from collections.abc import Iterator

from gnntrain.planning.plan import Plan
from gnntrain.planning.size import KnownSize
from gnntrain.reporting.tables import Section, checks, pairs
from gnntrain.reporting.text import (
    counted,
    counted_outputs,
    format_bytes,
    format_seconds,
    shown_path,
)

Pairs = list[tuple[str, str]]


def plan_sections(plan: Plan) -> Iterator[Section]:
    """All that the plan says."""
    of_one = f", measured on {plan.measured_on}" if plan.measured_on else ""
    num_timed = counted(plan.times.num_timed, "step")
    yield Section("run", [pairs(_run(plan))])
    yield Section(f"a batch of one rank (mean of {plan.batch.num_drawn})", [pairs(_batch(plan))])
    yield Section(f"time ({num_timed} and a part of evaluation{of_one})", [pairs(_time(plan))])
    yield Section(f"host memory{of_one}", [pairs(_memory(plan))])
    yield Section("disk", [pairs(_disk(plan))])
    yield Section("does it fit?", [checks(plan.checks)])
    yield Section(f"planned in {format_seconds(plan.seconds)}; nothing was written", [])


def size_section(size: KnownSize) -> Section:
    """All that is known of a graph that is not prepared."""
    graph, rows = size.graph, [("data set", size.dataset)]
    if graph is not None:
        sizes = f"{graph.num_nodes:,} nodes, about {graph.num_edges:,} edges"
        rows += [
            ("graph", sizes),
            ("", f"{graph.num_features:,} features, {graph.num_classes:,} classes"),
        ]
    rows += [
        ("store", f"about {format_bytes(size.store_bytes)}, not built: {shown_path(size.store)}"),
        ("free", format_bytes(size.free_bytes)),
    ]
    return Section("graph, as published", [pairs(rows)])


def _run(plan: Plan) -> Pairs:
    kind = "GPU" if plan.use_gpus else "CPU"
    outputs = counted_outputs(plan.num_classes, plan.label_kind)
    ranks = counted(plan.world_size, f"{kind} rank")
    if not plan.measured_on:
        ranks += f", {counted(plan.threads, 'thread')} each"
    return [
        ("graph", f"{plan.dataset}: {plan.num_nodes:,} nodes, {plan.num_edges:,} edges"),
        ("", f"{plan.num_features:,} features, {outputs}"),
        ("store", f"{plan.store_reason}: {shown_path(plan.store)}"),
        ("model", f"{plan.model}, {plan.num_parameters:,} parameters"),
        ("ranks", ranks),
        *(("", where) for where in plan.placement),
    ]


def _batch(plan: Plan) -> Pairs:
    batch = plan.batch
    edges = " + ".join(f"{number:,.0f}" for number in batch.num_edges) or "0"
    moved = f"{format_bytes(batch.bytes_read)} of features read"
    if batch.bytes_reduced:
        moved += f", {format_bytes(batch.bytes_reduced)} of gradients sent"
    return [
        ("nodes", f"{batch.num_seeds:,.0f} seeds, {batch.num_nodes:,.0f} in all"),
        ("edges", f"{edges} (the hop of the seeds first)"),
        ("bytes", moved),
    ]


def _time(plan: Plan) -> Pairs:
    times = plan.times
    num_steps = round(times.training / times.step)  # fewer than an epoch's with trainer.max_steps
    training = f"{format_seconds(times.training)} training ({counted(num_steps, 'step')})"
    run = f"{counted(plan.num_epochs, 'epoch')}, {counted(plan.num_evaluations, 'evaluation')}"
    return [
        ("step", f"{format_seconds(times.step)} {_range(times.step_range)}"),
        ("evaluation", f"{format_seconds(times.evaluation)} {_range(times.evaluation_range)}"),
        ("epoch", f"{training} + {format_seconds(times.evaluation)} evaluation"),
        ("run", f"{format_seconds(times.run)} ({run})"),
    ]


def _range(ends: tuple[float, float]) -> str:
    return f"({' to '.join(map(format_seconds, ends))})"


def _memory(plan: Plan) -> Pairs:
    memory = plan.memory
    is_shared = plan.world_size > 1 and not plan.measured_on
    ranks = f" ({counted(plan.world_size, 'rank')} together)" if is_shared else ""
    rows = [
        ("training", f"{format_bytes(memory.training)}{ranks}"),
        ("evaluation", f"{format_bytes(memory.evaluation)}{ranks}"),
    ]
    if memory.shared:
        rows.append(("shared", f"{format_bytes(memory.shared)} of layers, once for all ranks"))
    if memory.on_disk:
        rows.append(("on disk", f"{format_bytes(memory.on_disk)} of layers, in mapped files"))
    rows += [
        ("page cache", f"{format_bytes(memory.page_cache)} of the store; the system can drop it"),
        ("libraries", f"{format_bytes(memory.libraries)} a rank, mapped"),
        ("peak", f"{format_bytes(memory.peak_rss)} resident (peak_rss_bytes in summary.json)"),
    ]
    if plan.use_gpus:
        measured = f"{format_bytes(memory.peak_gpu)} of one GPU (peak_gpu_bytes)"
        rows.append(("GPU", measured if memory.peak_gpu else "not measured: no GPU here"))
    return rows


def _disk(plan: Plan) -> Pairs:
    rows = [("checkpoints", format_bytes(plan.checkpoints))]
    if plan.memory.on_disk:
        rows.append(("layers", f"{format_bytes(plan.memory.on_disk)}, during evaluation"))
    return rows
