"""The screen of a plan."""

from __future__ import annotations

import numpy as np
import pytest

from gnntrain.reporting.tables import print_sections
from tests.planning.plans import plan_of


def test_the_screen(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(plan_of(small).sections())
    shown = [line for line in capsys.readouterr().out.splitlines() if "stores" not in line]
    free = [line for line in shown if " available" not in line]
    assert np.array_equal(free[:-2], GOLDEN.splitlines())
    print_sections(plan_of(small, placement=["features in the store: 99 GiB"]).sections())
    assert "features in the store: 99 GiB" in capsys.readouterr().out


GOLDEN = """\
run
  graph  synthetic: 400 nodes, 6,000 edges
         64 features, 8 classes
  store  opened
  model  sage, 1,000 parameters
  ranks  1 CPU rank, 1 thread each

a batch of one rank (mean of 2)
  nodes  30 seeds, 150 in all
  edges  75 + 225 (the hop of the seeds first)
  bytes  0.09 MiB of features read

time (3 steps and one evaluation)
  step        200 ms (120 ms to 280 ms)
  evaluation  3.50 s
  epoch       600 ms training (3 steps) + 3.50 s evaluation
  run         1:22 (20 epochs, 20 evaluations)

memory
  training    400 MiB
  evaluation  500 MiB
  page cache  0.13 MiB of the store; the system can drop it
  peak        600 MiB resident (peak_rss_bytes in summary.json)
  disk        3.00 MiB of checkpoints

does it fit?"""
