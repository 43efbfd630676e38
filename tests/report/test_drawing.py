from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from gnntrain.report import figures
from gnntrain.report.figures import Figure, Panel, draw
from gnntrain.report.runs import read_run
from tests.examples import examples
from tests.report.samples import records_of, write_run


def line(*values: float, color: str = "#5d6880", **style: str) -> Figure:
    def drawing(panel: Panel) -> None:
        texts = [f"value {value}" for value in values]
        panel.curve(range(len(values)), values, texts, "a $b$ <c>", color=color, **style)
        panel.axes.set_xlabel("x $1 <&>")

    return drawing


def test_a_point_answers_where_it_is_drawn() -> None:
    drawing = draw(line(1.0, 3.0, 2.0), "f")
    svg = ElementTree.fromstring(drawing.svg)
    drawn = [
        (float(use.get("x", "nan")), float(use.get("y", "nan")))
        for use in svg.iter("{http://www.w3.org/2000/svg}use")
        if "x" in use.attrib
    ]
    for x, y, _, series in drawing.hover["points"]:
        assert series == 0
        assert any(math.dist((x, y), place) < 0.2 for place in drawn)
    assert [point[2] for point in drawing.hover["points"]] == [
        "value 1.0",
        "value 3.0",
        "value 2.0",
    ]
    assert drawing.colors == {"a $b$ <c>": "#5d6880"}
    assert "#5d6880" not in drawing.svg  # on dark ground the page has another


@examples(15)
@given(st.lists(st.floats(width=64), min_size=1, max_size=4))
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    drawing = draw(line(*values), "f")
    ElementTree.fromstring(drawing.svg)
    points = drawing.hover["points"]
    assert len(points) == sum(abs(value) < 1e300 for value in values)


def test_a_figure_of_many_epochs_stays_small(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", records_of(*[0.5] * 3000), {}))
    drawings = [draw(partial(f, run=run), "f") for f in (figures.loss, figures.metric)]
    assert all(len(drawing.svg) < 100_000 for drawing in drawings)
    assert all(len(drawing.hover["points"]) <= 2000 for drawing in drawings)
