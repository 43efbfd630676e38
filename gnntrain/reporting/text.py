"""Numbers, paths and curves as people read them, in plain text of bounded width; and an output that
never ends a run."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gnntrain.metrics import LabelKind

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_METRICS = {
    **{"roc_auc": "ROC AUC", "average_precision": "AP", "r2": "R2", "rmse": "RMSE", "mae": "MAE"},
    **{"f1": "F1", "f1_micro": "F1 micro", "f1_macro": "F1 macro"},
}


def shown_metric(name: str) -> str:
    """A metric's name for a person: ``roc_auc`` is ``ROC AUC``."""
    return _SHOWN_METRICS.get(name, name.replace("_", " "))


def format_rate(number: float | None) -> str:
    """A rate in three digits, in at most 6 characters: ``84.7``, ``12.3k``, ``1.21M``."""
    if number is None or not math.isfinite(number):
        return "-"
    return _scaled(number, 1000, ("", "k", "M", "G", "T"))


def format_bytes(number: float | None) -> str:
    """Bytes in three digits and a binary unit, in at most 8 characters: ``1.21 GiB``."""
    return "-" if number is None else _scaled(number / 2**20, 1024, (" MiB", " GiB", " TiB"))


def format_seconds(seconds: float | None) -> str:
    """A duration in at most 8 characters: ``12 ms``, ``3.21 s``, ``1:07``, ``2:03:07``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return _scaled(seconds, 60, (" s",))
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_loss(loss: float | None) -> str:
    """A loss as a metric; but one that is not finite is worth a word."""
    return format_metric(loss) if loss is None or math.isfinite(loss) else str(loss)


def format_metric(value: float | None, beside: float | None = None) -> str:
    """A metric in at most 9 characters: four decimals, fewer of a number from 1,000 on, and powers
    of ten where those would show too little; a deviation in the form of the mean ``beside`` it."""
    if value is None or math.isnan(value):
        return "-"
    size = abs(value if beside is None else beside)
    if size == 0 or 1e-3 <= size < 1e3:
        return f"{value:.4f}"
    if 1e3 <= size < 1e7:
        return f"{value:.{1 if size < 1e5 else 0}f}"
    return f"{value:.2e}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """``values`` in at most ``width`` characters, from the lowest to the highest.

    More values than characters are averaged in equal groups, of the finite ones alone.
    """
    array = np.array(values, dtype=np.float64)  # None is NaN
    array[~np.isfinite(array)] = np.nan
    if np.isnan(array).all():
        return ""
    array /= np.nanmax(np.abs(array)) or 1.0  # sums and differences do not overflow
    groups = [part[~np.isnan(part)] for part in np.array_split(array, min(width, len(array)))]
    means = [part.mean() if len(part) else math.nan for part in groups]
    low, high = np.nanmin(means), np.nanmax(means)
    heights = (np.array(means) - low) / (high - low or 1.0) * (len(_BARS) - 1)
    return "".join(" " if math.isnan(height) else _BARS[round(height)] for height in heights)


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    """Three digits, ``1.21``, ``12.3`` or ``847``, and the first unit in which they suffice."""
    for unit in units:
        if abs(number) < 999.5 or unit == units[-1]:
            break
        number /= base
    decimals = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{decimals}f}{unit}"


def short_key(key: str) -> str:
    """A key without the section that a reader knows it to be of: ``trainer.lr`` is ``lr``."""
    return re.sub(r"^(trainer|model)\.(?!name$)|\.name$", "", key)


def short_number(text: str) -> str:
    """A value as typed; a number in at most four digits, where that is shorter."""
    try:
        return min(text, f"{float(text):.4g}", key=len) if set(text) & set(".eE") else text
    except ValueError:
        return text


def shown_path(path: str | Path) -> str:
    """A path as a person would type it here: relative where it lies below, else absolute."""
    absolute = Path(path).absolute()
    with contextlib.suppress(ValueError, OSError):
        absolute = absolute.relative_to(Path.cwd())
    return str(absolute)


def counted(number: int, word: str) -> str:
    """A number with its noun, in the plural but for 1: `1 epoch`, `2,000 epochs`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def counted_inputs(num_features: int, num_node_types: int, num_edge_types: int) -> str:
    """What a model reads of a graph: `128 features`; or `4 node types, 8 edge types`."""
    if num_node_types == num_edge_types == 1:
        return counted(num_features, "feature")
    return f"{counted(num_node_types, 'node type')}, {counted(num_edge_types, 'edge type')}"


def counted_outputs(number: int, kind: LabelKind) -> str:
    """What a model predicts of a node, with its number: `7 classes`, `12 labels`, `1 target`."""
    if kind in ("multilabel", "continuous"):
        return counted(number, "label" if kind == "multilabel" else "target")
    return f"{number:,} classes"


class TolerantStream:
    """A text stream that replaces characters outside its encoding and survives a lost output.

    A closed pipe (``gnntrain | head``), a terminal that hung up or a full disk behind ``>`` mutes
    it; the run goes on, and its directory holds all results.

    Args:
        stream: The output; ``None`` is Python's value for an output that was closed at its start.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = Path(os.devnull).open("w") if stream is None else stream  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, with `?` in place of characters that the encoding lacks."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._tolerant("write", text.encode(encoding, errors="replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._tolerant("flush")

    def _tolerant(self, method: str, *arguments: str) -> None:
        """Call a method of the stream, which is muted where it is lost."""
        try:
            getattr(self._stream, method)(*arguments)
        except (OSError, ValueError):  # ValueError: this process closed the stream
            lost, self._stream = self._stream, Path(os.devnull).open("w")  # noqa: SIM115
            # The interpreter flushes the buffer at exit, which would fail again.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(self._stream.fileno(), lost.fileno())
