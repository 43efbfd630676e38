"""The pictures of a page, as Plotly takes them: plain data; the page paints their ground."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gnntrain.report.comparison import Group
from gnntrain.report.courses import (
    PHASES,
    metric_course,
    phase_seconds,
    spans_decades,
    typical_phases,
)
from gnntrain.report.runs import ReportedRun
from gnntrain.report.scores import SplitScores
from gnntrain.report.shape import Degrees, Floats, Ints, Points, Projection
from gnntrain.report.style import ACCENT, class_color
from gnntrain.report.style import PHASES as PHASE_COLORS
from gnntrain.report.style import SPLITS as SPLIT_COLORS
from gnntrain.reporting.text import shown_metric

Spec = dict[str, Any]
"""A figure: its `data` and its `layout`."""

_MANY_POINTS = 60
_MANY_GROUPS = 6
_FEW_EPOCHS = 12


def loss_figure(run: ReportedRun) -> Spec:
    """The mean training loss of every epoch."""
    epochs = [record.epoch for record in run.records]
    losses = [record.train_loss for record in run.records]
    trace = _curve("train loss", epochs, losses, SPLIT_COLORS["train"])
    return _by_epoch([trace], "loss", _log_if(losses), _best_line(run))


def metric_figure(run: ReportedRun) -> Spec:
    """The deciding metric on every split, and the best epoch."""
    traces = []
    for split, color in SPLIT_COLORS.items():
        epochs, values = metric_course(run, split)
        if epochs:
            traces.append(_curve(split, epochs, values, color))
    return _by_epoch(traces, shown_metric(run.metric or "metric"), {}, _best_line(run))


def throughput_figure(run: ReportedRun) -> Spec:
    """Edges a second, or seeds for a model that sees none."""
    epochs = [record.epoch for record in run.records]
    edges = [record.edges_per_s for record in run.records]
    seeds = [record.seeds_per_s for record in run.records]
    name, values = ("edges/s", edges) if any(edges) else ("seeds/s", seeds)
    return _by_epoch([_curve(name, epochs, values, ACCENT)], name, {"rangemode": "tozero"})


def time_figure(run: ReportedRun) -> Spec:
    """Seconds of every epoch, stacked by phase."""
    timed = [record for record in run.records if record.time]
    epochs = [record.epoch for record in timed]
    seconds = [phase_seconds(record) for record in timed]
    used = [name for name in PHASES if any(phases[name] for phases in seconds)]
    bars: list[Spec] = [
        {
            "type": "bar",
            "showlegend": False,
            "name": PHASES[name],
            "x": epochs,
            "y": _short(phases[name] for phases in seconds),
            "marker": {"color": PHASE_COLORS[name], "line": {"width": 0}},
            "hovertemplate": "%{y:.3s}s",
        }
        for name in used
    ]
    # The first epoch compiles: it may not push all others into the ground.
    totals = sorted(sum(phases.values()) for phases in seconds)
    axis: dict[str, Any] = {"ticksuffix": " s"}
    if len(totals) > 1 and totals[-1] > 3 * totals[-2]:
        axis["range"] = [0, 1.15 * totals[-2]]
    spec = _by_epoch(bars, "time", axis)
    spec["layout"] |= {"barmode": "stack", "bargap": 0.12 if len(epochs) <= _MANY_POINTS else 0}
    return spec


def typical_figure(run: ReportedRun) -> Spec:
    """The phases of a typical epoch, one beside the other."""
    phases = typical_phases(run.records)
    whole = sum(phases.values())
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": PHASES[name],
            "x": [_round(seconds)],
            "y": [""],
            "text": [f"{seconds / whole:.0%}" if seconds > 0.04 * whole else ""],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textfont": {"color": "#fff"},
            "marker": {"color": PHASE_COLORS[name]},
            "hovertemplate": "%{x:.3s}s",
        }
        for name, seconds in phases.items()
    ]
    axis = {"ticksuffix": " s", "zeroline": False}
    layout = {
        "barmode": "stack",
        "xaxis": axis,
        "yaxis": {"visible": False},
        "hovermode": "closest",
    }
    return {"data": bars, "layout": layout}


def memory_figure(run: ReportedRun) -> Spec:
    """Resident memory of all ranks, and the most that was used on a GPU."""
    epochs = [record.epoch for record in run.records]
    gib = [record.memory_bytes / 2**30 for record in run.records]
    traces = [_curve("resident, all ranks", epochs, gib, ACCENT)]
    gpu = [record.gpu_memory_bytes for record in run.records]
    if any(gpu):
        peaks = [(number or 0) / 2**30 for number in gpu]
        traces.append(_curve("GPU, peak of a rank", epochs, peaks, SPLIT_COLORS["test"]))
    return _by_epoch(traces, "memory", {"ticksuffix": " GiB", "rangemode": "tozero"})


def degree_figure(degrees: Degrees) -> Spec:
    """How many nodes have how many in-neighbours, both on logarithmic axes."""
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": _short(degrees.degree),
        "y": _short(degrees.nodes_per_degree),
        "marker": {"color": ACCENT, "size": 7, "opacity": 0.8},
        "hovertemplate": "degree %{x:.4~g}<br>%{y:.4~g} nodes<extra></extra>",
    }
    axes = {
        "xaxis": {"type": "log", "title": {"text": "in-degree"}, "dtick": 1},
        "yaxis": {"type": "log", "title": {"text": "nodes of each degree"}, "dtick": 1},
    }
    return {"data": [trace], "layout": {**axes, "hovermode": "closest", "showlegend": False}}


def roc_figure(scores: dict[str, SplitScores]) -> Spec:
    """The receiver operating characteristic on every split that has one."""
    diagonal = {"x": [0, 1], "y": [0, 1], "mode": "lines", "hoverinfo": "skip", "showlegend": False}
    traces: list[Spec] = [
        {"type": "scatter", **diagonal, "line": {"color": "#8d99ae", "dash": "dot"}}
    ]
    for split, scored in scores.items():
        if scored.roc is not None:
            false_rate, true_rate = scored.roc
            traces.append(_curve(split, false_rate, true_rate, SPLIT_COLORS[split]))
    layout = {
        "xaxis": {"title": {"text": "false positive rate"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "true positive rate"}, "range": [0, 1.01]},
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def confusion_figure(scores: SplitScores, names: Sequence[str]) -> Spec:
    """Shares of a true class that are taken for each class."""
    assert scores.confusion is not None
    shares = scores.confusion / scores.support.clip(min=1)[:, None]
    labels = [html.escape(name) for name in names]
    heatmap = {
        "type": "heatmap",
        "x": labels,
        "y": labels,
        "z": [_short(row) for row in shares],
        "customdata": scores.confusion.tolist(),
        "colorscale": [[0, "rgba(58,134,255,0)"], [1, "rgba(58,134,255,1)"]],
        "zmin": 0,
        "zmax": 1,
        "showscale": False,
        "hovertemplate": "true %{y}, predicted %{x}<br>%{customdata}, %{z:.1%}<extra></extra>",
    }
    axis = {"type": "category", "showgrid": False, "zeroline": False}
    layout = {
        "xaxis": axis | {"title": {"text": "predicted"}},
        "yaxis": axis | {"title": {"text": "true"}, "autorange": "reversed"},
        "hovermode": "closest",
    }
    return {"data": [heatmap], "layout": layout}


def projection_figure(
    projection: Projection, classes: Ints, predicted: Ints | None, names: Sequence[str]
) -> Spec:
    """Nodes in the plane, coloured by class; those that are told wrongly are rings."""
    traces = []
    for number in sorted(set(classes.tolist())):
        own = (classes == number).nonzero()[0]
        texts, symbols = [], []
        for i in own.tolist():
            text = f"{_node_text(projection, i)}<br>class {html.escape(names[number])}"
            if predicted is not None:
                text += f"<br>predicted {html.escape(names[predicted[i]])}"
            texts.append(text)
            is_wrong = predicted is not None and predicted[i] != number
            symbols.append("circle-open" if is_wrong else "circle")
        marker = {"color": class_color(number), "size": 6, "opacity": 0.85, "symbol": symbols}
        name = html.escape(names[number])
        traces.append({**_placed(projection, own), "name": name, "text": texts, "marker": marker})
    return {"data": traces, "layout": _plane()}


def value_projection_figure(projection: Projection, values: Floats, name: str) -> Spec:
    """Nodes in the plane, coloured by a quantity."""
    texts = [
        f"{_node_text(projection, i)}<br>{html.escape(name)} {value:.6g}"
        for i, value in enumerate(values.tolist())
    ]
    title = {"text": html.escape(name), "side": "right"}
    marker = {
        "color": _short(values),
        "colorscale": "Viridis",
        "colorbar": {"title": title, "thickness": 12},
        "size": 6,
        "opacity": 0.85,
    }
    trace = {**_placed(projection, slice(None)), "text": texts, "marker": marker}
    return {"data": [trace], "layout": {**_plane(), "showlegend": False}}


def _placed(projection: Projection, chosen: Any) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": _short(projection.places[chosen, 0]),
        "y": _short(projection.places[chosen, 1]),
        "hovertemplate": "%{text}<extra></extra>",
    }


def _plane() -> dict[str, Any]:
    blank = {"visible": False}
    # one unit is as long in x as in y, or distances would mean nothing
    same_scale = {"scaleanchor": "x", "scaleratio": 1}
    return {"xaxis": blank, "yaxis": blank | same_scale, "hovermode": "closest"}


def _node_text(projection: Projection, i: int) -> str:
    return f"node {projection.nodes[i]} ({projection.splits[i]})"


def prediction_figure(points: Mapping[str, Points], name: str) -> Spec:
    """Predicted values over true ones, a colour a split, and the line where they are equal."""
    ends = [end for split in points.values() for end in (*split.true, *split.predicted)]
    low, high = min(ends), max(ends)
    line = {"x": _short([low, high]), "y": _short([low, high]), "mode": "lines"}
    style = {"color": "#8d99ae", "dash": "dot"}
    traces: list[Spec] = [
        {"type": "scatter", **line, "line": style, "hoverinfo": "skip", "showlegend": False}
    ]
    for split, found in points.items():
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": split,
                "x": _short(found.true),
                "y": _short(found.predicted),
                "text": [html.escape(node) for node in found.nodes],
                "marker": {"color": SPLIT_COLORS[split], "size": 5, "opacity": 0.6},
                "hovertemplate": "%{text}<br>true %{x:.6~g}<br>predicted %{y:.6~g}",
            }
        )
    layout = {
        "xaxis": {"title": {"text": f"true {html.escape(name)}"}},
        "yaxis": {"title": {"text": f"predicted {html.escape(name)}"}},
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def residual_figure(histograms: Mapping[str, tuple[Floats, Floats]], name: str) -> Spec:
    """How many of 100 nodes of a split have which error.

    Args:
        histograms: By split: middles of equal bins `[n]`, and the share of nodes in each.
        name: The target.
    """
    traces = [
        {
            "type": "bar",
            "name": split,
            "x": _short(middles),
            "y": _short(shares),
            "marker": {"color": SPLIT_COLORS[split], "line": {"width": 0}},
            "opacity": 0.6,
            "hovertemplate": "%{x:.4~g}: %{y:.1%}",
        }
        for split, (middles, shares) in histograms.items()
    ]
    layout = {
        "xaxis": {"title": {"text": f"predicted − true {html.escape(name)}"}},
        "yaxis": {"title": {"text": "share of the nodes"}, "tickformat": ".0%"},
        "barmode": "overlay",
        "bargap": 0,
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def losses_figure(groups: Sequence[Group]) -> Spec:
    """The training loss of many runs, a colour a group."""
    values = [record.train_loss for group in groups for r in group.runs for record in r.records]
    courses = {
        run.name: ([r.epoch for r in run.records], [r.train_loss for r in run.records])
        for group in groups
        for run in group.runs
    }
    return _by_epoch(_of_groups(groups, courses), "loss", _log_if(values))


def metrics_figure(groups: Sequence[Group]) -> Spec:
    """The deciding metric of many runs on val, a colour a group."""
    courses = {run.name: metric_course(run, "val") for group in groups for run in group.runs}
    names = {shown_metric(run.metric) for group in groups for run in group.runs if run.metric}
    return _by_epoch(_of_groups(groups, courses), f"val {' / '.join(sorted(names))}", {})


def _of_groups(
    groups: Sequence[Group], courses: dict[str, tuple[list[int], list[float]]]
) -> list[Spec]:
    traces = []
    for number, group in enumerate(groups):
        for place, run in enumerate(group.runs):
            trace = _curve(html.escape(group.label), *courses[run.name], class_color(number))
            named = place == 0 and len(groups) <= _MANY_GROUPS
            own = {"legendgroup": str(number), "showlegend": named, "opacity": 0.8}
            name = f"<extra>{html.escape(run.name)}</extra>"
            traces.append(trace | own | {"hovertemplate": f"%{{y:.4f}}{name}"})
    return traces


def spread_figure(groups: Sequence[Group], split: str) -> Spec:
    """The deciding metric of every run, and the mean and standard deviation of its group."""
    traces = []
    for number, group in enumerate(groups):
        label, color = html.escape(group.label), class_color(number)
        spread = group.spread(split)
        dots = {
            "type": "scatter",
            "mode": "markers",
            "x": _short(run.score(split) for run in group.runs),
            "y": [label] * len(group.runs),
            "text": [html.escape(run.name) for run in group.runs],
            "marker": {"color": color, "size": 8, "opacity": 0.5},
            "hovertemplate": "%{text}: %{x:.4f}<extra></extra>",
        }
        mean = {
            "type": "scatter",
            "mode": "markers",
            "x": _short([math.nan if spread.mean is None else spread.mean]),
            "y": [label],
            "error_x": {"array": [spread.std or 0], "thickness": 2, "width": 6},
            "marker": {"color": color, "size": 13, "symbol": "diamond"},
            "hovertemplate": "mean %{x:.4f}<extra></extra>",
        }
        traces += [dots, mean]
    metrics = {shown_metric(run.metric) for group in groups for run in group.runs if run.metric}
    title = f"{split} {' / '.join(sorted(metrics))}"
    layout = {
        "xaxis": {"title": {"text": title}},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "hovermode": "closest",
        "showlegend": False,
    }
    return {"data": traces, "layout": layout}


def _curve(name: str, x: Any, y: Any, color: str) -> Spec:
    values = _short(y)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(values) <= _MANY_POINTS else "lines",
        "name": name,
        "x": _short(x),
        "y": values,
        "line": {"color": color, "width": 2},
        "marker": {"size": 5},
    }


def _by_epoch(
    traces: list[Spec], title: str, yaxis: dict[str, Any], shapes: Sequence[Spec] = ()
) -> Spec:
    epochs = [epoch for trace in traces for epoch in trace["x"]]
    axis: Spec = {"title": {"text": "epoch"}, "tickformat": "d"}
    if epochs and max(epochs) - min(epochs) < _FEW_EPOCHS:
        axis["dtick"] = 1  # or there would be ticks between epochs
    layout = {
        "xaxis": axis,
        "yaxis": {"title": {"text": title}, **yaxis},
        "hovermode": "x unified",
        "shapes": list(shapes),
    }
    return {"data": traces, "layout": layout}


def _best_line(run: ReportedRun) -> list[Spec]:
    """A line at the best epoch."""
    epoch = run.result.best_epoch
    if epoch is None or len(run.records) < 2:
        return []
    line = {"color": SPLIT_COLORS["val"], "width": 1, "dash": "dot"}
    ends = {"x0": epoch, "x1": epoch, "y0": 0, "y1": 1, "yref": "paper"}
    return [{"type": "line", **ends, "line": line}]


def _log_if(values: Sequence[float]) -> dict[str, Any]:
    return {"type": "log", "tickformat": "~g"} if spans_decades(values) else {"rangemode": "tozero"}


def _short(values: Any) -> list[float | None]:
    """The values in six digits, so that the page stays small; gaps where they are no numbers."""
    return [_round(float(value)) for value in values]


def _round(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
