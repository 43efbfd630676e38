"""Feed damaged and malicious input to everything that reads what others wrote.

    python -m scripts.fuzz --examples 100000

An answer or a sentence (`GnntrainError`) is right; any other exception, and no answer within twenty
seconds, is a finding: it is shrunk, printed with its input, and the exit code is 1. The inputs are
those of `tests/fuzz`, which CI tries a few of.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import time
import traceback
import warnings

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz import commands, graphs, records
from tests.fuzz.surface import HangError, Surface

# Hypothesis remembers what it tried: in one piece, a hundred thousand would fill the memory.
_BATCH = 500
# What an input makes allocate beyond this is a finding too (MemoryError).
_ADDRESS_SPACE = 8 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=10_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0, help="where the inputs start")
    parser.add_argument("--only", default="", help="the name of one way in")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    logging.getLogger("gnntrain").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    surfaces = [*commands.surfaces(), *graphs.surfaces(), *records.surfaces()]
    chosen = [surface for surface in surfaces if arguments.only in ("", surface.name)]
    total = sum(surface.share for surface in chosen)
    tried = [
        _try(surface, arguments.examples * surface.share // total, arguments.seed)
        for surface in chosen
    ]
    num_inputs, num_findings = (sum(counts) for counts in zip(*tried, strict=True))
    print(f"{num_inputs:,} inputs, {num_findings} findings", flush=True)
    return 1 if num_findings else 0


def _try(surface: Surface, num_inputs: int, first_seed: int) -> tuple[int, int]:
    """Inputs tried and findings."""
    begin = time.perf_counter()
    num_tried = num_taken = num_findings = 0
    while num_tried < num_inputs:
        batch, before = min(_BATCH, num_inputs - num_tried), num_tried

        @seed(first_seed + num_tried)
        @settings(
            max_examples=batch,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(surface.inputs)
        def one_batch(value: object) -> None:
            nonlocal num_tried, num_taken
            num_tried += 1
            num_taken += surface.check(value)

        try:
            one_batch()
        except (Exception, HangError):
            num_findings += 1
            print(f"FINDING in {surface.name}:", file=sys.stderr)
            traceback.print_exc()
        if num_tried == before:
            break  # nothing new to try
    seconds = time.perf_counter() - begin
    print(
        f"{surface.name:18} {num_tried:7,} inputs  {num_taken:7,} taken  "
        f"{num_findings} findings  {seconds:6.0f} s",
        flush=True,
    )
    return num_tried, num_findings


if __name__ == "__main__":
    sys.exit(main())
