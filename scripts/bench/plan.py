"""How well `gnntrain plan` predicts: planned, then run, on the synthetic graphs.

    python -m scripts.bench.plan [--cases synthetic synthetic_reddit synthetic_products]

For each case: `gnntrain plan` with its keys, then the run itself with them, and predicted over
measured for peak memory (`peak_rss_bytes`), an epoch's training and its evaluation. Times mean
something on a quiet machine only: with a load average above --max-load it waits, for at most
--patience minutes, and then says that it does not measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

CASES: dict[str, list[str]] = {
    # Of several epochs the median: the first also loads kernels and metrics.
    "synthetic": ["dataset=synthetic", "trainer.epochs=5"],
    "200,000 nodes": ["dataset=synthetic", "dataset.num_nodes=200000", "trainer.epochs=3"],
    "gat": ["dataset=synthetic", "model=gat", "trainer.epochs=3"],
    "full graph": ["dataset=synthetic", "sampler=full", "trainer.epochs=3"],
    "synthetic_reddit": [
        "dataset=synthetic_reddit",
        "model.hidden_channels=256",
        "sampler.fan_outs=[25,10]",
        "trainer.epochs=1",
    ],
    "synthetic_products": ["dataset=synthetic_products", "trainer.epochs=1"],
}
BOUNDS = {"memory": 0.15, "epoch": 0.25}
FIGURES = ("memory", "training", "evaluation", "epoch")


def planned(overrides: Sequence[str], folder: Path) -> dict[str, float]:
    """What `gnntrain plan` says."""
    path = folder / "plan.json"
    _gnntrain("plan", *overrides, "--json", str(path))
    plan = json.loads(path.read_text())
    times = plan["times"]
    return {
        "memory": plan["memory"]["peak_rss"],
        "training": times["training"],
        "evaluation": times["evaluation"],
        "epoch": times["training"] + times["evaluation"],
    }


def measured(overrides: Sequence[str], folder: Path) -> dict[str, float]:
    """What the run takes."""
    run = folder / "run"
    _gnntrain(*overrides, f"run.dir={run}")
    summary = json.loads((run / "summary.json").read_text())
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = median(epoch["seconds"] for epoch in epochs)
    evaluation = median(epoch["eval_seconds"] for epoch in epochs)
    return {
        "memory": summary["peak_rss_bytes"],
        "training": training,
        "evaluation": evaluation,
        "epoch": training + evaluation,
    }


def _gnntrain(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "gnntrain", *arguments], check=True, stdout=subprocess.DEVNULL
    )


def compare(name: str, extra: Sequence[str]) -> dict[str, Any]:
    """One case, planned and run."""
    overrides = [*CASES[name], "trainer.gpus=0", *extra]
    _gnntrain("prepare", *overrides)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        said = planned(overrides, Path(folder))
        was = measured(overrides, Path(folder))
    ratios = {figure: said[figure] / was[figure] for figure in FIGURES}
    return {
        "case": name,
        "overrides": overrides,
        "load": load,
        "planned": said,
        "measured": was,
        "ratios": ratios,
        "holds": all(abs(ratios[figure] - 1) <= bound for figure, bound in BOUNDS.items()),
    }


def _is_quiet(max_load: float, patience: float) -> bool:
    deadline = time.monotonic() + 60 * patience
    while os.getloadavg()[0] > max_load and time.monotonic() < deadline:
        time.sleep(10)
    return os.getloadavg()[0] <= max_load


def _line(result: dict[str, Any]) -> str:
    def cell(figure: str) -> str:
        scale, unit = (2**30, "GiB") if figure == "memory" else (1, "s")
        said, was = (result[which][figure] / scale for which in ("planned", "measured"))
        return f"{said:.3g}/{was:.3g} {unit} = {result['ratios'][figure]:.2f}"

    return " | ".join([result["case"], *map(cell, FIGURES), "yes" if result["holds"] else "no"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--max-load", type=float, default=1.5)
    parser.add_argument("--patience", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", help="further keys, for plan and run alike")
    options = parser.parse_args()
    results = []
    print(" | ".join(["planned/measured", *FIGURES, "within bounds"]), flush=True)
    for name in options.cases:
        if not _is_quiet(options.max_load, options.patience):
            print(f"{name}: not measured, the load average is {os.getloadavg()[0]:.1f}")
            continue
        results.append(compare(name, options.overrides))
        print(_line(results[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if len(results) == len(options.cases) and all(r["holds"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
