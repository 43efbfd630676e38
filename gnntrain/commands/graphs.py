"""Before a run: graph stores and parts, what there is, whether it works, what it will need."""

from __future__ import annotations

import json
import re
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnntrain.atomic_io import atomic_write
from gnntrain.commands.parsing import command, composed, option, say
from gnntrain.errors import RunError, UserError
from gnntrain.paths import expanded, is_folder

if TYPE_CHECKING:
    from gnntrain.data.partitioned_graph import Method
    from gnntrain.reporting.tables import Section

_METHODS: tuple[Method, ...] = ("streaming", "metis", "random")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_KINDS = ("datasets", "stores", "models", "runs")


@command("[group=option] [group.key=value] ...")
def prepare(arguments: Namespace) -> int:
    """build the data set's graph store, or verify the one that is there

    Training does so by itself; this does nothing else.

    examples:
      gnntrain prepare
      gnntrain prepare dataset.num_nodes=100000
    """
    config = composed(arguments)
    from gnntrain.data.summary import from_plain
    from gnntrain.run import prepare

    result = prepare(config)
    read = from_plain(result.pop("data"))
    for key, value in [*result.items(), *(read.lines() if read is not None else ())]:
        text = "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
        if isinstance(value, Mapping):
            text = ", ".join(f"{name} {number}" for name, number in value.items())
        say(f"{key:{max(map(len, result))}}  {text}")
    return 0


@command(
    "[group=option] [group.key=value] ... --parts N --out DIR [--method METHOD]",
    option("--parts", "N", "number of parts, at most 256", type=int, required=True),
    option("--out", "DIR", "where to; must not be there yet, or empty", required=True),
    option("--method", "METHOD", "streaming (default), metis or random", choices=_METHODS),
)
def partition(arguments: Namespace) -> int:
    """cut a graph into parts, for distributed.graph=partitioned

    Takes the data set's keys that training takes. A part has the features, the labels and the
    in-edges of its nodes. streaming needs some bytes of memory a node. metis may cut fewer edges;
    it needs the package pymetis, and the graph several times over in memory. random cuts the most.
    A machine needs its own parts (DIR/part0, ...) and the files beside them.

    examples:
      gnntrain partition --parts 2 --out parts
      gnntrain partition dataset.num_nodes=5000 --parts 4 --out parts4 --method random
    """
    config = composed(arguments, for_here=False)
    from gnntrain.data.partitioning.build import partition, refuse_mistakes
    from gnntrain.reporting import text
    from gnntrain.reporting.tables import Section, pairs, print_sections, rows
    from gnntrain.run_store import prepare_store

    num_parts, method, out = arguments.parts, arguments.method or _METHODS[0], arguments.out

    def sections() -> Iterator[Section]:  # each as soon as it is known
        began, folder = time.perf_counter(), expanded(out)
        store = prepare_store(config.dataset).store
        refuse_mistakes(store, num_parts, folder, method)
        graph = f"{store.dataset}: {store.num_nodes:,} nodes, {store.num_edges:,} edges"
        about = [("graph", graph), ("parts", f"{num_parts}, by the method {method}")]
        yield Section("partition", [pairs(about)])
        parts = partition(store, num_parts, folder, method)
        cut, each = parts.meta.cut_edges, parts.meta.parts
        header = ("part", "nodes", "edges", "training nodes", "size")
        sizes = [(part.num_nodes, part.num_edges, part.num_train) for part in each]
        columns = zip(header[1:4], zip(*sizes, strict=True), strict=True)
        balance = [f"{name} {max(c) * num_parts / sum(c):.2f}" for name, c in columns if any(c)]
        share = f"{cut / max(parts.num_edges, 1):.1%}"
        result = [
            ("cut", f"{cut:,} edges between parts ({share})"),
            ("balance", f"{', '.join(balance)} (largest part over the mean)"),
        ]
        yield Section("result", [pairs(result)])
        cells = [
            (f"{number}", *(f"{n:,}" for n in sizes[number]), text.format_bytes(part.num_bytes))
            for number, part in enumerate(each)
        ]
        yield Section("parts", [rows(header, cells)])
        seconds = text.format_seconds(time.perf_counter() - began)
        yield Section(f"written to {text.shown_path(parts.path)} in {seconds}", [])

    print_sections(sections())
    return 0


@command("[datasets|stores|models|runs] [FOLDER]", most=2)
def ls(arguments: Namespace) -> int:
    """list data sets, prepared stores, models, runs

    Without a word all of them, briefly. FOLDER is where runs or stores lie, if not at their usual
    places.

    examples:
      gnntrain ls
      gnntrain ls datasets
      gnntrain ls stores
      gnntrain ls runs
    """
    kind, folder = [*arguments.words, None, None][:2]
    if kind is not None and kind not in _KINDS:
        from gnntrain.config.problems import did_you_mean

        hint = did_you_mean(kind, _KINDS, f"There are {', '.join(_KINDS)}.")
        raise UserError(f"{kind!r} cannot be listed", hint)
    if folder is not None and kind == "models":
        raise UserError("models lie in no folder", "As in `gnntrain ls runs FOLDER`.")
    from gnntrain.inventory import sections
    from gnntrain.reporting.tables import print_sections

    print_sections(sections(kind, None if folder is None else _existing(folder)))
    return 0


def _existing(folder: str) -> Path:
    if not is_folder(expanded(folder)):
        raise UserError(f"there is no folder {folder}", "Give one that is there.")
    return expanded(folder)


def _seconds(age: str) -> float:
    """An age such as 30d in seconds."""
    read = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([hdw])", age)
    if read is None:
        hint = "As in `--older-than 30d`: a number and h (hours), d (days) or w (weeks)."
        raise UserError(f"--older-than {age} is no age", hint)
    return float(read[1]) * _HOURS[read[2]] * 3600


@command(
    "[FOLDER] [--older-than AGE] [--all] [--yes]",
    option("--older-than", "AGE", "only stores not used for so long: 30d", type=_seconds),
    option("--all", "", "also stores of graphs given in Python, which cannot be built again"),
    option("--yes", "", "do not ask"),
    most=1,
)
def clean(arguments: Namespace) -> int:
    """remove graph stores that are not needed any more

    Shows the stores in the user's cache folder, or in FOLDER, and asks whether to remove them. Runs
    build them again from the raw files where they need them. Stores that a process uses are kept,
    without --all also those of graphs that were given in Python, which cannot be built again.

    examples:
      gnntrain clean
      gnntrain clean --older-than 30d --yes
    """
    from gnntrain.config import DatasetConfig
    from gnntrain.data.stores import find_stores, remove_store, stores_folder
    from gnntrain.inventory import STORE_HEADER, store_rows, total
    from gnntrain.reporting.tables import Section, print_sections, rows
    from gnntrain.reporting.text import shown_path

    words = arguments.words
    folder = _existing(words[0]) if words else stores_folder(DatasetConfig())
    begin = time.time() - (arguments.older_than or 0.0)
    found = [store for store in find_stores(folder) if store.last_used <= begin]
    for store in [] if arguments.all else [one for one in found if one.is_of_object]:
        say(f"kept {store.path.name}: its graph was given in Python; --all removes it, too")
        found.remove(store)
    if not found:
        say(f"no store to remove in {shown_path(folder)}")
        return 0
    if not arguments.yes:
        if not sys.stdin.isatty():
            what = "clean asks before it removes stores, and there is no terminal to ask on"
            raise UserError(what, "Add --yes; `gnntrain ls stores` shows the stores.")
        table = rows(STORE_HEADER, store_rows(found), left=2)
        note = "A run builds its store again, where the raw files are still there."
        print_sections([Section(f"stores in {shown_path(folder)}", [table, note])])
        try:
            answer = input(f"Remove {total(found)}? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            say("nothing was removed")
            return 0
    removed, refused = [], []
    for store in found:
        try:
            if remove_store(store):
                removed.append(store)
            else:
                say(f"kept {store.path.name}: it is in use")
        except FileNotFoundError:  # another process was faster
            continue
        except OSError as error:
            refused.append(f"{store.path} cannot be removed: {error.strerror or error}")
    say(f"removed {total(removed)}")
    if refused:
        raise RunError(refused[0], f"{len(refused)} in all." if len(refused) > 1 else None)
    return 0


def _write_json(out: str, content: object) -> None:
    """Plain data to the file `out`, or to the standard output where it is `-`."""
    text = json.dumps(content, indent=2)
    if out == "-":
        say(text)
        return
    try:
        with atomic_write(expanded(out)) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{out} cannot be written: {reason}", "Choose another file.") from error


@command(
    "[group.key=value] ...",
    option("--json", "FILE", "write it as JSON (-: instead of the text)"),
    option("--gpu", "", "try the kernels for GPUs"),
)
def doctor(arguments: Namespace) -> int:
    """check packages, hardware and disks, and say what `auto` chooses here

    Each line is ok, a note, or a problem with what to do about it; with a problem the exit code is
    1. Keys say what for: `gnntrain doctor trainer.gpus=4`. With --gpu it tries every kernel for
    GPUs instead.

    examples:
      gnntrain doctor
      gnntrain doctor --json -
      gnntrain doctor --gpu
    """
    config = composed(arguments)
    from gnntrain.reporting.tables import Section, checks, print_sections, rows
    from gnntrain.reporting.text import counted

    found: list[tuple[str, list[Any]]] = []  # results by title, each with a judgement

    def number_of(judgement: str) -> int:
        return sum(one.judgement == judgement for _, results in found for one in results)

    def sections() -> Iterator[Section]:
        if arguments.gpu:
            from gnntrain.doctor.gpu import HEADER, check_kernels

            for title, kernels in check_kernels(config):
                found.append((title, kernels))
                reasons = [f"{row.kernel}: {row.why_not}" for row in kernels if row.why_not]
                table = rows(HEADER, [row.cells() for row in kernels], left=2)
                yield Section(title, [table, *reasons])
            yield Section(f"{counted(number_of('problem'), 'kernel')} wrong", [])
            return
        from gnntrain.doctor.checks import check_machine

        for title, results in check_machine(config):
            found.append((title, results))
            yield Section(title, [checks(results)])
        told = ", ".join(counted(number_of(kind), kind) for kind in ("problem", "note"))
        yield Section(told if number_of("problem") else f"ready: {told}", [])

    if arguments.json == "-":
        list(sections())
    else:
        print_sections(sections())
    if arguments.json is not None:
        plain = [{"title": title, "findings": [*map(asdict, one)]} for title, one in found]
        _write_json(arguments.json, plain)
    return int(number_of("problem") > 0)


@command(
    "[group=option] [group.key=value] ...",
    option("--json", "FILE", "write it as JSON too (-: instead of the text)"),
)
def plan(arguments: Namespace) -> int:
    """what a run will need, before it runs: memory, batches, time, disk

    Takes the keys that training takes, and does a dry run: a few training steps and one evaluation,
    in processes of their own. If the run does not fit, a hint says what to change, and the exit
    code is 1.

    examples:
      gnntrain plan dataset=synthetic_reddit 'sampler.fan_outs=[25,10]'
      gnntrain plan distributed.num_processes=2 trainer.gpus=0 --json plan.json
    """
    config = composed(arguments)
    from gnntrain.planning.plan import plan
    from gnntrain.reporting.tables import print_sections

    planned = plan(config)
    if arguments.json != "-":
        print_sections(planned.sections())
    if arguments.json is not None:
        _write_json(arguments.json, planned.to_dict())
    return 0 if planned.fits else 1
