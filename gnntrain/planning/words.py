"""A plan as people read it: sections of labels and values."""

from __future__ import annotations

from gnntrain.planning.plan import Plan
from gnntrain.reporting.text import (
    counted,
    counted_outputs,
    format_bytes,
    format_seconds,
    shown_path,
)

Pairs = list[tuple[str, str]]


def sections(plan: Plan) -> list[tuple[str, Pairs]]:
    """Titles, and what stands below each."""
    return [
        ("run", _run(plan)),
        (f"a batch of one rank (mean of {plan.batch.num_drawn} that were drawn)", _batch(plan)),
        (f"time (from {counted(plan.times.num_timed, 'step')} and a part of evaluation)",
         _time(plan)),
        ("host memory", _host(plan)),
        ("GPU memory of a rank (estimate by formula, beside the graph)", _gpu(plan)),
        ("disk", _disk(plan)),
    ]  # fmt: skip


def _run(plan: Plan) -> Pairs:
    kind = "GPU" if plan.use_gpus else "CPU"
    outputs = counted_outputs(plan.num_classes, plan.label_kind)
    return [
        ("graph", f"{plan.dataset}: {plan.num_nodes:,} nodes, {plan.num_edges:,} edges"),
        (
            "",
            f"{plan.num_features:,} features, {outputs}",
        ),
        ("store", f"{plan.store_reason}: {shown_path(plan.store)}"),
        ("model", f"{plan.model}, {plan.num_parameters:,} parameters"),
        (
            "ranks",
            f"{counted(plan.world_size, f'{kind} rank')}, {counted(plan.threads, 'thread')} each",
        ),
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
        ("edges", f"{edges} (the layer next to the seeds first)"),
        ("bytes", moved),
    ]


def _time(plan: Plan) -> Pairs:
    times = plan.times
    num_steps = round(times.training / times.step)  # fewer than an epoch's with trainer.max_steps
    training = f"{format_seconds(times.training)} training ({counted(num_steps, 'step')})"
    run = f"{counted(plan.num_epochs, 'epoch')}, {counted(plan.num_evaluations, 'evaluation')}"
    return [
        ("step", format_seconds(times.step)),
        ("epoch", f"{training} + {format_seconds(times.evaluation)} evaluation"),
        ("run", f"{format_seconds(times.run)} ({run})"),
    ]


def _host(plan: Plan) -> Pairs:
    host = plan.host
    ranks = "" if plan.world_size == 1 else f" ({counted(plan.world_size, 'rank')} together)"
    rows = [
        ("training", f"{format_bytes(host.training)}{ranks}"),
        ("evaluation", f"{format_bytes(host.evaluation)}{ranks}"),
    ]
    if host.shared:
        rows.append(("shared", f"{format_bytes(host.shared)} of layers, once for all ranks"))
    if host.on_disk:
        rows.append(("on disk", f"{format_bytes(host.on_disk)} of layers, in mapped files"))
    return [
        *rows,
        ("page cache", f"{format_bytes(host.store)} of the store, once a machine; can be dropped"),
        ("libraries", f"{format_bytes(host.libraries)} a rank, mapped"),
        ("peak", f"{format_bytes(host.peak_rss)} resident (peak_rss_bytes in summary.json)"),
    ]


def _gpu(plan: Plan) -> Pairs:
    gpu = plan.gpu
    return [
        ("model", f"{format_bytes(gpu.state)} with gradients and optimiser"),
        ("batch", format_bytes(gpu.batch)),
        ("evaluation", format_bytes(gpu.evaluation)),
        ("peak", f"{format_bytes(gpu.total)} with CUDA's own"),
    ]


def _disk(plan: Plan) -> Pairs:
    rows = [("checkpoints", format_bytes(plan.checkpoints))]
    if plan.host.on_disk:
        rows.append(("scratch", f"{format_bytes(plan.host.on_disk)}, during evaluation"))
    return rows
