"""The courses of runs as one PNG, for a slide or a chat."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gnntrain.report.comparison import Group, groups_of
from gnntrain.report.courses import (
    PHASES,
    metric_course,
    phase_seconds,
    spans_decades,
)
from gnntrain.report.runs import ReportedRun
from gnntrain.report.shape import Floats
from gnntrain.report.style import ACCENT, class_color
from gnntrain.report.style import PHASES as PHASE_COLORS
from gnntrain.report.style import SPLITS as SPLIT_COLORS
from gnntrain.report.values import TargetFindings
from gnntrain.reporting.text import format_metric, shown_metric

_QUIET = "#5d6880"
_MANY_GROUPS = 8


def to_png(runs: Sequence[ReportedRun], target: TargetFindings | None = None) -> bytes:
    """Loss, metric, time by phase and memory of one run; or the courses of several, by setting.

    Args:
        runs: The runs.
        target: What the best model of a single run says of its first target, which is drawn too.
    """
    num_rows = 2 if target is None else 3
    figure = Figure(figsize=(11, 3.5 * num_rows), dpi=140, layout="constrained")
    panels = [axes for row in figure.subplots(num_rows, 2) for axes in row]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_QUIET)
        axes.grid(alpha=0.25)
    if len(runs) == 1:
        figure.suptitle(_plain(_title(runs[0])), fontsize=14, x=0.01, ha="left")
        _draw_run(runs[0], panels[:4])
    else:
        figure.suptitle(f"{len(runs)} runs", fontsize=14, x=0.01, ha="left")
        _draw_groups(groups_of(runs), panels)
    if target is not None:
        _draw_target(target, *panels[4:])
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _title(run: ReportedRun) -> str:
    title = f"{run.name} ({run.status})"
    if not run.best:
        return title
    metric = shown_metric(run.metric or "")
    scores = ", ".join(f"{split} {format_metric(run.score(split))}" for split in run.best)
    return f"{title}: {metric} {scores} in epoch {run.result.best_epoch}"


def _draw_run(run: ReportedRun, panels: Sequence[Axes]) -> None:
    loss, metric, time, memory = panels
    epochs = [record.epoch for record in run.records]
    losses = [record.train_loss for record in run.records]
    loss.plot(epochs, losses, color=SPLIT_COLORS["train"])
    _name(loss, "training loss", losses)
    for split, color in SPLIT_COLORS.items():
        metric.plot(*metric_course(run, split), color=color, label=split)
    _name(metric, shown_metric(run.metric or "metric"))
    if run.result.best_epoch is not None:
        metric.axvline(run.result.best_epoch, color=_QUIET, linestyle=":", label="best epoch")
        metric.legend(frameon=False)
    _draw_phases(run, time)
    memory.plot(epochs, [record.memory_bytes / 2**30 for record in run.records], color=ACCENT)
    memory.set_ylim(bottom=0)
    _name(memory, "memory of all ranks, GiB")


def _draw_phases(run: ReportedRun, axes: Axes) -> None:
    timed = [record for record in run.records if record.time]
    seconds = [phase_seconds(record) for record in timed]
    used = [name for name in PHASES if any(phases[name] for phases in seconds)]
    if used:
        axes.stackplot(
            [record.epoch for record in timed],
            [[phases[name] for phases in seconds] for name in used],
            colors=[PHASE_COLORS[name] for name in used],
            labels=[PHASES[name] for name in used],
        )
        axes.legend(frameon=False, ncols=2, fontsize="small")
    totals = sorted(sum(phases.values()) for phases in seconds)
    if len(totals) > 1:  # the first epoch compiles
        axes.set_ylim(0, 1.3 * min(totals[-1], 2 * totals[-2]))
    _name(axes, "seconds an epoch")


def _draw_target(target: TargetFindings, predicted: Axes, errors: Axes) -> None:
    name = _plain(target.name)
    for split, points in target.drawn.items():
        color = SPLIT_COLORS[split]
        predicted.plot(points.true, points.predicted, ".", color=color, alpha=0.6, label=split)
        middles, shares = target.residuals[split]
        errors.stairs(shares, _edges(middles), fill=True, color=color, alpha=0.6, label=split)
    predicted.axline((float(points.true[0]),) * 2, slope=1, color=_QUIET, linestyle=":")
    predicted.set_title(f"predicted over true {name}", loc="left", fontsize=11)
    errors.set_title(f"predicted − true {name}, share of the nodes", loc="left", fontsize=11)
    predicted.legend(frameon=False)


def _edges(middles: Floats) -> list[float]:
    width = middles[1] - middles[0] if len(middles) > 1 else 2.0
    return [*(middles - width / 2).tolist(), float(middles[-1] + width / 2)]


def _draw_groups(groups: Sequence[Group], panels: Sequence[Axes]) -> None:
    loss, val, test, spread = panels
    every_loss = [record.train_loss for _, _, run in _colored(groups) for record in run.records]
    for color, label, run in _colored(groups):
        epochs = [record.epoch for record in run.records]
        losses = [record.train_loss for record in run.records]
        loss.plot(epochs, losses, color=color, alpha=0.8, label=label)
        val.plot(*metric_course(run, "val"), color=color, alpha=0.8)
        test.plot(*metric_course(run, "test"), color=color, alpha=0.8)
    if len(groups) <= _MANY_GROUPS:
        loss.legend(frameon=False, fontsize="small")
    metrics = {shown_metric(run.metric) for _, _, run in _colored(groups) if run.metric}
    metric = " / ".join(sorted(metrics))
    _name(loss, "training loss", every_loss)
    _name(val, f"val {metric}")
    _name(test, f"test {metric}")
    _draw_spreads(groups, spread)
    spread.set_xlabel(f"test {metric}, mean and standard deviation by setting", color=_QUIET)


def _draw_spreads(groups: Sequence[Group], axes: Axes) -> None:
    for number, group in enumerate(groups):
        found, color = group.spread("test"), class_color(number)
        scores = [run.score("test") for run in group.runs]
        axes.plot(scores, [number] * len(scores), "o", color=color, alpha=0.4)
        if found.mean is not None:
            axes.errorbar(found.mean, number, xerr=found.std, fmt="D", color=color, capsize=4)
    labels = [_plain(group.label) for group in groups]
    axes.set_yticks(range(len(groups)), labels, fontsize="small")
    axes.invert_yaxis()


def _colored(groups: Sequence[Group]) -> Iterator[tuple[str, str, ReportedRun]]:
    """Every run with its group's colour, and its group's label where it is the first."""
    for number, group in enumerate(groups):
        for place, run in enumerate(group.runs):
            label = "_" if place else _plain(group.label)
            yield class_color(number), label, run


def _plain(text: str) -> str:
    """Text in which a `$` is one, and begins no formula."""
    return text.replace("$", r"\$")


def _name(axes: Axes, title: str, values: Sequence[float] = ()) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("epoch", color=_QUIET)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if spans_decades(values):
        axes.set_yscale("log")
