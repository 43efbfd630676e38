from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gnntrain.reporting.text import (
    counted,
    format_bytes,
    format_loss,
    format_metric,
    format_rate,
    format_seconds,
    sparkline,
)


@pytest.mark.parametrize(
    ("format_", "texts"),
    [
        (format_rate, {0: "0.00", 3.14159: "3.14", 847.3: "847", 999.6: "1.00k", 12_345: "12.3k"}),
        (format_rate, {1_210_000: "1.21M", 2e15: "2000T", None: "-", math.nan: "-", math.inf: "-"}),
        (format_bytes, {0: "0.00 MiB", 2**20: "1.00 MiB", 1000 * 2**20: "0.98 GiB"}),
        (format_bytes, {3 * 2**29: "1.50 GiB", 139 * 2**30: "139 GiB", 2**41: "2.00 TiB"}),
        (format_seconds, {0.0124: "12 ms", 0.9996: "1.00 s", 3.214: "3.21 s", 59.94: "59.9 s"}),
        (format_seconds, {59.96: "1:00", 67: "1:07", 7387: "2:03:07", None: "-", math.nan: "-"}),
        (format_loss, {1.93754: "1.9375", 0: "0.0000", 12345.6: "12345.6", 1e-5: "1.00e-05"}),
        (format_loss, {math.nan: "nan", math.inf: "inf", None: "-"}),
        (format_metric, {0.5: "0.5000", -0.25: "-0.2500", 999.5: "999.5000", 1234.567: "1234.6"}),
        (format_metric, {-12345.67: "-12345.7", 1234567.8: "1234568", 12345678: "1.23e+07"}),
        (format_metric, {0.0004567: "4.57e-04", math.nan: "-", None: "-"}),
        (
            lambda number: counted(number, "epoch"),
            {0: "0 epochs", 1: "1 epoch", 2000: "2,000 epochs"},
        ),
    ],
)
def test_numbers_are_texts_that_fit_a_column(
    format_: Callable[[Any], str], texts: dict[Any, str]
) -> None:
    assert [*map(format_, texts)] == [*texts.values()]


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0], 8) == "█▁"
    assert sparkline([5, 5, 5], 8) == "▁▁▁"
    assert sparkline([0, 0, 1, 1, 7, 7], 3) == "▁▂█"
    assert sparkline([0, math.nan, 7, None, math.inf], 8) == "▁ █  "
    assert sparkline([math.nan, None], 8) == sparkline([], 8) == ""
