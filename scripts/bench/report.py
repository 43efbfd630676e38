"""The figures as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.bench.cases import Entry
from scripts.bench.peers.turns import Spec
from scripts.bench.sitting import Result, Spread, ratios


def title(graph: str, spec: Spec) -> str:
    return f"{graph} {spec.fan_outs}: {spec.stage}"


def show(console: Console, graph: str, spec: Spec, results: Sequence[Result]) -> None:
    """One sitting's table: who, how fast, with how much memory, and how much faster ours is."""
    unit = "passes/s" if spec.stage == "inference" else "batches/s"
    ours = [r.entry for r in results if r.entry.is_ours]
    columns = sorted({entry.label for entry in ours})
    table = Table(title=title(graph, spec), title_justify="left")
    table.add_column("contestant")
    for name in ("threads", unit, "quartiles", "edges", "peak GiB"):
        table.add_column(name, justify="right")
    for name in columns:
        table.add_column(f"{name} is", justify="right")
    shares = ratios(results)
    for result in (r for r in results if not r.absent):
        entry, rate = result.entry, result.rate
        by_ours = {
            mine.label: _ratio(share, its if its.is_ours else None)
            for (mine, its), share in shares.items()
            if entry == (mine if its.is_ours else its)
        }
        table.add_row(
            entry.label,
            str(entry.threads),
            _number(rate.median),
            f"{_number(rate.lower)} - {_number(rate.upper)}",
            f"{result.edges_per_batch:,.0f}",
            f"{result.peak_rss_bytes / 2**30:.2f}",
            *(by_ours.get(name, "") for name in columns),
        )
    console.print(table)
    for result in results:
        words = f"absent: {result.absent}" if result.absent else result.note
        used = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        who = f"{result.entry.label} on {result.entry.threads}"
        console.print(f"  {who}: {words}{f' ({used})' if used else ''}", soft_wrap=True)


def show_floor(
    console: Console, floors: Mapping[str, Mapping[str, Any]], results: Sequence[Result]
) -> None:
    """How far ours is from what the machine could do, by precision."""
    table = Table(title="floor of a step", title_justify="left")
    table.add_column("precision and threads")
    headings = ("GFLOP", "MB", "GFLOP/s", "rows GB/s", "floor s", "step s", "step / floor")
    for name in headings:
        table.add_column(name, justify="right")
    for result in results:
        floor = floors.get(floor_key(result.entry.precision, result.entry.threads))
        if floor is None or not result.entry.is_ours or result.absent:
            continue
        step = 1 / result.rate.median
        table.add_row(
            f"{result.entry.precision}, {result.entry.threads}",
            f"{floor['flops'] / 1e9:.1f}",
            f"{floor['bytes'] / 1e6:.0f}",
            f"{max(floor['gemm_flops_per_s'].values()) / 1e9:.0f}",
            f"{floor['random_rows_bytes_per_s'] / 1e9:.1f}",
            f"{floor['floor_s']:.3f}",
            f"{step:.3f}",
            f"{step / floor['floor_s']:.2f}",
        )
    console.print(table)


def floor_key(precision: str, threads: int) -> str:
    return f"{precision} on {threads}"


def as_json(graph: str, spec: Spec, results: Sequence[Result]) -> dict[str, Any]:
    """One sitting, with every round's figure."""
    shares = ratios(results)
    rows = []
    for result in results:
        row = {**asdict(result.entry), **asdict(result)}
        del row["entry"]
        if not result.absent:
            row["rate"] = asdict(result.rate)
            row["faster_than"] = [
                {**asdict(its), **asdict(share)}
                for (mine, its), share in shares.items()
                if mine == result.entry
            ]
        rows.append(row)
    asked = {key: asdict(spec)[key] for key in ("stage", "dataset", "overrides", "fan_outs")}
    size = {"batch_size": spec.batch_size, "hidden": spec.hidden}
    return {"graph": graph, **asked, **size, "contestants": rows}


def _ratio(share: Spread, itself: Entry | None) -> str:
    beside = "" if itself is None else f" itself on {itself.threads}"
    return f"{share.median:.2f}x{beside} ({share.lower:.2f} - {share.upper:.2f})"


def _number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
