"""The colours of a report: one for each thing, on every picture, on light and on dark ground."""

from __future__ import annotations

import colorsys

SPLITS = {"train": "#8d99ae", "val": "#3a86ff", "test": "#f4845f"}
ACCENT = "#3a86ff"
PHASES = {
    "sample": "#2a9d8f",
    "gather": "#8ab17d",
    "wait": "#e9c46a",
    "transfer": "#b5838d",
    "forward": "#3a86ff",
    "backward": "#7b5ea7",
    "all_reduce": "#e63946",
    "optimizer": "#f4a261",
    "other": "#adb5bd",
    "evaluation": "#5fb3a3",
}
_CLASSES = (
    *("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f"),
    *("#d9b53a", "#b07aa1", "#ff9da7", "#9c755f", "#9aa0a6"),
)
_GOLDEN_ANGLE = 0.381966


def class_color(number: int) -> str:
    """A class's, or a run's: ten that are well apart, then hues around the circle."""
    if number < len(_CLASSES):
        return _CLASSES[number]
    rgb = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1, 0.58, 0.55)
    return "#" + "".join(f"{round(part * 255):02x}" for part in rgb)
