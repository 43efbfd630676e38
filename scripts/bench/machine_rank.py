"""A rank of `scripts.bench.machines`: gnntrain's command with a stopwatch and with counters.

The folder in GNNTRAIN_BENCH gets `steps.json`, rank 0's clock at the end of each step, and
`calls-<rank>.json`: the bytes of the arrays that a rank has sent to and got from other ranks, by
the name of the call, before the exchange frames them.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gnntrain.__main__ import run
from gnntrain.distributed.exchange import Exchange
from gnntrain.distributed.owners import AnyArray
from gnntrain.reporting import loggers
from gnntrain.training.records import EpochRecord, Listener, StepProgress

FOLDER = "GNNTRAIN_BENCH"


class Stopwatch(Listener):
    """A listener that notes the end of each step."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ends: list[float] = []

    def on_step(self, progress: StepProgress) -> None:  # noqa: ARG002
        self._ends.append(time.perf_counter())

    def on_epoch(self, record: EpochRecord) -> None:  # noqa: ARG002
        self._file.write_text(json.dumps(self._ends))


class CountingExchange(Exchange):
    """Counts calls, and their arrays' bytes to and from other ranks; writes them when it closes."""

    def call(
        self, name: str, arguments: Mapping[int, Sequence[AnyArray]]
    ) -> dict[int, list[AnyArray]]:
        answers = super().call(name, arguments)
        _counts[f"{name} calls"] += 1
        for owner, answer in answers.items():
            if owner != self.owner:
                _counts[f"{name} sent"] += sum(array.nbytes for array in arguments[owner])
                _counts[f"{name} received"] += sum(array.nbytes for array in answer)
        return answers

    def close(self) -> None:
        super().close()
        file = Path(os.environ[FOLDER]) / f"calls-{os.environ['RANK']}.json"
        file.write_text(json.dumps(_counts))


_counts: Counter[str] = Counter()


def main() -> None:
    build_loggers = loggers.build_loggers

    def with_stopwatch(*arguments: Any) -> list[Any]:
        stopwatch = Stopwatch(Path(os.environ[FOLDER]) / "steps.json")
        return [*build_loggers(*arguments), stopwatch]

    with (
        patch("gnntrain.worker.build_loggers", with_stopwatch),
        patch("gnntrain.distributed.exchange.Exchange", CountingExchange),
    ):
        run()


if __name__ == "__main__":
    main()
