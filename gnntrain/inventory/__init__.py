"""Data sets, stores, models and runs with their sizes: the tables of `gnntrain ls`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from gnntrain.config import (
    DATASET_NAMES,
    DatasetConfig,
    SyntheticConfig,
    SyntheticMAGConfig,
    from_dict,
)
from gnntrain.config.models import ModelConfig, model_names
from gnntrain.config.published import PUBLISHED, SYNTHETIC_MAG, SYNTHETIC_NAMES, GraphSize
from gnntrain.data.array_folder import StoreError
from gnntrain.data.store import StoreMeta
from gnntrain.data.stores import FoundStore, find_stores, stores_folder
from gnntrain.limits import why_killed
from gnntrain.plugins import DATASETS, MODELS, plugin_names
from gnntrain.reporting import text
from gnntrain.reporting.rundir import RUNS, RunDirectory, is_running, run_directories
from gnntrain.reporting.tables import Section, rows

STORE_HEADER = ("store", "data set", "nodes", "edges", "features", "type", "size", "last used")
_DATASET_HEADER = ("data set", "nodes", "edges", "features", "classes", "prepared")
_MODEL_HEADER = ("model", "what it is", "parameters")
_RUN_HEADER = ("run", "status", "metric", "val", "test", "best", "time")
_SIZES = "Sizes as PyG and OGB publish them; a stored graph may have an edge in both directions."
_NUM_FEATURES, _NUM_CLASSES = 100, 47
_MODELS = (
    f"Parameters with the default keys, {_NUM_FEATURES} features and {_NUM_CLASSES} classes "
    "(ogbn-products)."
)
_BRIEF = 5


def sections(kind: str | None, folder: Path | None) -> Iterator[Section]:
    """The tables of `datasets`, `stores`, `models` or `runs` (None: of all of them, briefly), in a
    folder or where they usually lie."""

    def listed(
        what: str, place: Path, header: Sequence[str], cells: list[list[str]], notes: list[str]
    ) -> Section:
        kept = cells[: _BRIEF if kind is None else None]
        content = [rows(header, kept, left=3 if what == "runs" else 2)] if kept else []
        rest = len(cells) - len(kept)
        more = [f"{rest} more: `gnntrain ls {what}`."] if rest else []
        return Section(f"{what} in {text.shown_path(place)}", [*content, *notes, *more])

    if kind in ("datasets", "stores", None):
        place = folder or stores_folder(DatasetConfig())
        stores = find_stores(place)
        if kind is None:
            names = ", ".join((*DATASET_NAMES, *plugin_names(DATASETS)))
            yield Section("data sets", [names, "Their sizes: `gnntrain ls datasets`."])
        elif kind == "datasets":
            yield Section("data sets", [rows(_DATASET_HEADER, dataset_rows(stores)), _SIZES])
        note = f"{total(stores)}; `gnntrain clean` removes stores."
        if not stores:
            note = "None yet: `gnntrain prepare dataset=NAME` builds one, training does too."
        yield listed("stores", place, STORE_HEADER, store_rows(stores), [note])
    if kind in ("models", None):
        yield Section("models", [rows(_MODEL_HEADER, model_rows(), left=2), _MODELS])
    if kind in ("runs", None):
        cells = run_rows(folder or RUNS)
        yield listed("runs", folder or RUNS, _RUN_HEADER, cells, run_notes(cells))


def dataset_rows(stores: Iterable[FoundStore]) -> list[list[str]]:
    """A row a data set, those of other packages last: its size, and how many stores it has."""
    names = (*DATASET_NAMES, *plugin_names(DATASETS))
    # A user's own files may have any other name.
    used = (store.dataset for store in stores if not store.is_leftover)
    prepared = Counter(name if name in names else "files" for name in used)
    cells = []
    for name in names:
        size = PUBLISHED[name].size if name in PUBLISHED else None
        if name in (*SYNTHETIC_NAMES, SYNTHETIC_MAG):
            size = known_size(from_dict({"dataset": {"name": name}}).dataset)
        sizes = ["-"] * 4 if size is None else [f"{number:,}" for number in size]
        cells.append(
            [name, *sizes, text.counted(prepared[name], "store") if prepared[name] else "-"]
        )
    return cells


def known_size(dataset: DatasetConfig) -> GraphSize | None:
    """The size of a graph before it is stored; None: only its files or its package know it."""
    if isinstance(dataset, SyntheticConfig):
        num_edges = dataset.num_edges
        if num_edges is None:
            num_edges = round(dataset.avg_degree * dataset.num_nodes)
        return GraphSize(dataset.num_nodes, num_edges, dataset.num_features, dataset.num_classes)
    if isinstance(dataset, SyntheticMAGConfig):
        num_nodes, num_edges = (sum(n.values()) for n in (dataset.num_nodes, dataset.num_edges))
        return GraphSize(num_nodes, 2 * num_edges, dataset.num_features, dataset.num_classes)
    published = PUBLISHED.get(dataset.name)
    if published is None:
        return None
    if published.edges_once or dataset.to_undirected:
        return published.size._replace(num_edges=2 * published.size.num_edges)
    return published.size


def store_rows(stores: Sequence[FoundStore]) -> list[list[str]]:
    """A row a store, under `STORE_HEADER`; sizes of its target type where it can be used."""
    cells = []
    for store in stores:
        sizes = ["-"] * 4
        with suppress(StoreError):
            meta = StoreMeta.read(store.path)
            types = meta.graph_schema
            num_nodes = sum(types.num_nodes.values())
            num_edges = sum(kind.num_edges for kind in meta.edge_types)
            numbers = (num_nodes, num_edges, types.num_features[meta.target])
            sizes = [*(f"{number:,}" for number in numbers), meta.arrays["features_0"].dtype]
        dataset = "(never finished)" if store.is_leftover else store.dataset
        used = f"{datetime.fromtimestamp(store.last_used):%Y-%m-%d %H:%M}"
        size = text.format_bytes(store.num_bytes)
        cells.append([store.path.name, dataset, *sizes, size, used])
    return cells


def total(stores: Sequence[FoundStore]) -> str:
    """How many stores, and their size: `3 stores, 1.21 GiB`."""
    size = text.format_bytes(sum(store.num_bytes for store in stores))
    return f"{text.counted(len(stores), 'store')}, {size}"


def model_rows() -> list[list[str]]:
    """Built-in models, with their sizes for one shape of graph, and those of other packages."""
    import torch  # stores and runs are listed without

    from gnntrain.data.graph import EDGE, NODE, GraphSchema
    from gnntrain.models import build_model

    schema = GraphSchema({NODE: 2_449_029}, {NODE: _NUM_FEATURES}, (EDGE,), NODE)
    cells = []
    for name in model_names():
        config = ModelConfig(name=name)
        with torch.device("meta"):
            model = build_model(config, schema, _NUM_CLASSES)
        number = sum(parameter.numel() for parameter in model.parameters())
        cells.append([name, str(config.__doc__).rstrip("."), f"{number:,}"])
    for name in plugin_names(MODELS):
        cells.append([name, f"of an installed package: model={name}", "-"])
    return cells


def run_rows(root: Path) -> list[list[str]]:
    """All runs in `root` and its sweeps' folders, the newest first, a row each: how it ended, what
    it reached, how long it took."""

    def begun(folder: Path) -> float:
        with suppress(OSError):  # removed meanwhile
            return (folder / "config.yaml").stat().st_mtime
        return 0.0

    def number(values: object, name: object) -> float | None:
        """A number of a summary, which may hold anything."""
        value = values.get(name) if isinstance(values, dict) else None
        return float(value) if isinstance(value, int | float) else None

    cells = []
    for folder in sorted(run_directories(root), key=begun, reverse=True):
        name, summary = str(folder.relative_to(root)), RunDirectory(folder).summary()
        if summary is None and (folder / "summary.json").exists():
            cells.append([name, "unreadable", *["-"] * 5])
            continue
        if summary is None:  # validation and test are not known; the epochs are
            summary = {"status": "running" if is_running(folder) else "killed", "epochs": 0}
            with suppress(OSError):
                summary["epochs"] = (folder / "metrics.jsonl").read_bytes().count(b"\n")
        metric = summary.get("metric")
        row = [name, str(summary.get("status", "unreadable"))]
        row.append("-" if metric is None else text.shown_metric(str(metric)))
        row += (text.format_metric(number(summary.get(of), metric)) for of in ("val", "test"))
        row.append(f"{summary.get('best_epoch') or '-'}/{summary.get('epochs', '-')}")
        cells.append([*row, text.format_seconds(number(summary, "seconds_total"))])
    return cells


def run_notes(cells: Sequence[Sequence[str]]) -> list[str]:
    """Sentences for below the rows of runs."""
    if not cells:
        return ["None yet: `gnntrain` trains one."]
    found = {row[1] for row in cells}
    notes = [f"killed: the run ended without a word; {why_killed()}."] if "killed" in found else []
    if found & {"killed", "interrupted", "failed"}:
        notes.append("`gnntrain resume RUN` goes on with a run that did not complete.")
    return notes
