"""Where the ticks of epochs are."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from gnntrain.report.figures import loss_figure, metric_figure
from gnntrain.report.picture import _draw_run
from gnntrain.report.runs import read_run
from tests.report.samples import records_of, write_run


@pytest.mark.parametrize("num_epochs", [1, 2, 5, 12])
def test_few_epochs_have_no_ticks_between_them(tmp_path: Path, num_epochs: int) -> None:
    run = read_run(write_run(tmp_path / "run", records_of(*[0.5] * num_epochs), {}))
    for figure in (loss_figure(run), metric_figure(run)):
        assert figure["layout"]["xaxis"]["dtick"] == 1
    panels = [axes for row in Figure(figsize=(11, 7)).subplots(2, 2) for axes in row]
    _draw_run(run, panels)
    for axes in panels:
        assert all(tick == round(tick) for tick in axes.get_xticks())


def test_many_epochs_leave_the_ticks_to_the_page(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", records_of(*[0.5] * 200), {}))
    assert "dtick" not in loss_figure(run)["layout"]["xaxis"]
