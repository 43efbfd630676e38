"""Graphs given as objects in Python, or saved in one file: PyG's `Data`, dictionaries of arrays, a
`GraphData`.

An object becomes arrays by PyG's names (`x`, `y`, `edge_index`, `train_mask`, …) for each node type
and edge type; one of one type has a single entry of each. The arrays become tables in memory of a
`GraphSpec`, which `read_graph` reads as it reads files: rows of `x` are the nodes 0, 1, 2, …, to
which `edge_index` refers. The summary lists the arrays that were read and left out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset, HeteroData
from torch_geometric.data.in_memory_dataset import nested_iter

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.config.graph_spec import ColumnSpec, EdgeSpec, GraphSpec, NodeSpec, spec_of_files
from gnntrain.data.array_files import (
    TORCH_SUFFIXES,
    ArrayTable,
    densified,
    edges_of,
    load_arrays,
    load_torch,
    unpack_graph,
)
from gnntrain.data.graph import EDGE, NODE, SPLITS, AnyArray, EdgeType, GraphData, NodeType
from gnntrain.data.names import (
    ADJACENCIES,
    FEATURE_ARRAYS,
    ID_ARRAYS,
    LABEL_ARRAYS,
    PAIR_ARRAYS,
    SPLIT_ARRAYS,
    WEIGHT_ARRAYS,
)
from gnntrain.data.preprocessing import AnyPreprocessing, by_node_type
from gnntrain.data.read.edges import table_of_arrays
from gnntrain.data.read.graph import read_graph
from gnntrain.data.read.nodes import utf8
from gnntrain.data.summary import EDGES_ALONE
from gnntrain.data.table_files import GRAPHML_SUFFIX, conversion_hint
from gnntrain.data.tables import BadRows, Table, refuse_beyond_memory, unreadable
from gnntrain.errors import UserError

_WHOLE_GRAPH_KEYS = {
    *("data", "split", "split_ratio", "split_seed", "stratify", "weight_column", "task", "metric"),
    *("missing", "standardize"),
}
"""Keys of `FilesConfig` that say something of a graph that is no table."""

_NO_USE = "models here take x, y, edge_index, edge_weight and masks"
_EDGE_ATTR = "edges have no features here; dataset.weight_column=edge_attr takes it as weights"
_DIGEST_ROWS = 1 << 16
_SUFFIXES = (*TORCH_SUFFIXES, ".npz", GRAPHML_SUFFIX)  # of files of a whole graph
_GLOBAL = "_global_store"
"""Where PyG keeps what is neither of nodes nor of edges."""


@dataclass
class _Arrays:
    """Arrays of nodes or edges, taken by name; those that are `left` are not used.

    `columns` are the names of the columns of tables, by the arrays that they became; `num_nodes`
    is how many nodes labels and edges count.
    """

    source: str
    left: dict[str, AnyArray]
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    num_nodes: int = 0

    def take(self, *names: str) -> tuple[str, AnyArray | None]:
        """The first of these arrays that is there, and its name."""
        name = next((name for name in names if name in self.left), names[0])
        return name, self.left.pop(name, None)

    def wrong(self, name: str, array: AnyArray, expected: str, hint: str) -> UserError:
        """The error for an array of another shape or type."""
        kind = "float" if array.dtype.kind == "f" else array.dtype  # NumPy has no bfloat16
        shown = f"{kind} {list(array.shape)}"
        return UserError(f"{self.source}: {name} is {shown} instead of {expected}.", hint)


def graph_of_object(
    given: object,
    config: FilesConfig,
    source: str = "data",
    *,
    labelled: bool = True,
    preprocessing: AnyPreprocessing | None = None,
    is_published: bool = False,
) -> GraphData:
    """A user's graph from an object, which messages call `source`; see `read_graph`.

    Args:
        given: A PyG `Data` or `HeteroData`, or a list or data set of one; a mapping of arrays,
            tensors or tables by PyG's names, for a typed graph of such mappings by node type and
            edge type; a `GraphData`. Shapes are PyG's; beside its names, `ids` are `[num_nodes]`
            and masks may be `[num_nodes, num_splits]`.
        config: Name, task, metric, split, and what else makes a graph of it.

    Raises:
        UserError: It is no such object, or has a mistake.
    """
    attributes = {} if isinstance(given, GraphData) else _attributes(given, source)
    is_typed = _is_typed(attributes)
    usable = {*DatasetConfig.model_fields, "task"} | ({*_WHOLE_GRAPH_KEYS} if attributes else set())
    usable -= {"weight_column"} if is_typed else set()
    for key, of_key in FilesConfig.model_fields.items():
        if key not in usable and getattr(config, key) != of_key.default:
            kind = "of arrays; the key is about tables" if attributes else "that is taken as it is"
            raise UserError(
                f"dataset.{key}: {source} is a graph {kind}.",
                "Leave it out, or give tables as dataset.features and dataset.edges.",
            )
    if isinstance(given, GraphData):
        for name, of_model in by_node_type(preprocessing).items():
            of_graph = given.nodes[name].preprocessing if name in given.nodes else None
            if of_model != of_graph and not of_model.is_identity:
                raise UserError(
                    f"{source} is a GraphData, and the model's features were made of columns.",
                    "Give tables, or a PyG Data, with the columns it was trained on.",
                )
        graph = copy.copy(given)
        graph.dataset, graph.labelled = config.name, labelled and given.labelled
        return graph

    nodes, edges = _by_type(attributes, source)
    usual = spec_of_files(config, NODE, EDGE)
    tables: dict[str, Table] = {}
    weight_names = WEIGHT_ARRAYS if config.weight_column is None else (config.weight_column,)
    edge_specs: list[EdgeSpec] = []
    published_weight: AnyArray | None = None
    for edge_type, arrays in edges.items():
        spec = replace(usual.edges[0], place=f"edges.{'/'.join(edge_type)}", edge_type=edge_type)
        if is_published and not is_typed:  # its weights may be below 0
            _, published_weight = arrays.take(*WEIGHT_ARRAYS)
        tables[spec.place] = table = _edge_table(arrays, () if is_typed else weight_names, spec)
        edge_specs.append(spec)
        for name, place in zip(edge_type[::2], (0, 1), strict=True) if is_typed else ():
            fewest = int(table.column(place).max(initial=-1)) + 1
            nodes[name].num_nodes = max(nodes[name].num_nodes, fewest)
    node_specs: dict[NodeType, NodeSpec] = {}
    for name, arrays in nodes.items():
        of_type = replace(usual.nodes[NODE], place=f"nodes.{name}", name=name)
        of_type, of_nodes = _node_tables(
            of_type, arrays, config, labelled=labelled, needs_x=not (is_typed or is_published)
        )
        tables |= of_nodes
        model = by_node_type(preprocessing).get(name)
        if model is not None and model.fills is not None:  # the model says what is filled in
            of_type = replace(of_type, missing="mean")
        node_specs[name] = of_type
    if labelled and not is_typed and not node_specs[NODE].label.files:
        hint = "Give y a label a node: integers for classes, -1 where a node has none."
        raise UserError(f"{source} has no y.", hint)

    graph = read_graph(
        GraphSpec(node_specs, edges=tuple(edge_specs), schema=Path(source) if is_typed else None),
        {},
        config,
        BadRows("error", source),
        tables=tables,
        labelled=labelled,
        preprocessing=preprocessing,
        is_published=is_published,
    )
    if published_weight is not None:
        graph.edges[EDGE].weight = published_weight.reshape(-1).astype(np.float32)
    left_out: dict[str, str] = {}
    for name, arrays in nodes.items():
        graph.nodes[name].ids = _ids(arrays, graph.nodes[name].num_nodes)
        for key in arrays.left:
            reason = _EDGE_ATTR if key == "edge_attr" else _NO_USE
            left_out[f"{name}." * is_typed + key] = reason
    own_ids = [name for name, of_nodes in graph.nodes.items() if of_nodes.ids is not None]
    for edge_type, arrays in edges.items() if is_typed else ():
        left_out |= {f"{'/'.join(edge_type)}.{key}": EDGES_ALONE for key in arrays.left}
    where = "the graph's own" if own_ids else "row numbers"
    if own_ids and is_typed:
        where += f" of {', '.join(own_ids)}, else row numbers"
    assert graph.summary is not None
    graph.summary = graph.summary.model_copy(update={"ids": where, "left_out": left_out})
    if is_typed or not isinstance(given, Mapping):
        return graph
    # In a file of features and one of edges they are ids; in a PyG `Data` they are rows.
    ids, ends = graph.nodes[NODE].ids, graph.edges[EDGE]
    are_numbers = ids is not None and ids.dtype.kind == "i" and len(ends.src) > 0
    if are_numbers and all(np.isin(end, np.asarray(ids)).all() for end in ends):
        raise UserError(
            f"{source} has ids, and edge_index may hold them or count the rows of x.",
            "Leave the ids out if it counts rows. If it holds ids, give the file as "
            "dataset.features and as dataset.edges.",
        )
    return graph


def from_pyg(
    data: Data | HeteroData,
    dataset: str,
    *,
    split: int = 0,
    target: NodeType | None = None,
    quantities: bool = False,
) -> GraphData:
    """A published PyG `Data` or `HeteroData`, which may be without features; without masks, `split`
    counts the random splits. See `graph_of_object` for what is read.
    """
    config = FilesConfig(split=split, task="regression" if quantities else "auto")
    graph = graph_of_object(data, config.for_target(target), dataset, is_published=True)
    graph.dataset = dataset
    return graph


def read_whole_graph(
    path: Path,
    config: FilesConfig,
    *,
    labelled: bool,
    preprocessing: AnyPreprocessing | None = None,
) -> GraphData:
    """The graph in a file of a whole one, see `read_graph`. No code in the file is run.

    A pt file holds a `Data` or `HeteroData`, its `to_dict()`, or what PyG's `InMemoryDataset`
    keeps; an npz file arrays by PyG's names; GraphML is a table of nodes and one of edges. Formats
    that only code can read are refused, with the lines that convert them.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise UserError(
            f"dataset.data={path}: a file that ends with {path.suffix!r} is no whole graph.",
            conversion_hint(path) or f"Give one that ends with {', '.join(_SUFFIXES)}.",
        )
    if suffix == GRAPHML_SUFFIX:
        spec = spec_of_files(config, NODE, EDGE, path)
        both = {"features": [path], "edges": [path]}
        bad = BadRows(config.bad_rows)
        return read_graph(spec, both, config, bad, labelled=labelled, preprocessing=preprocessing)
    is_npz = suffix not in TORCH_SUFFIXES
    given = unpack_graph(path, load_arrays([path])) if is_npz else load_saved(path)
    return graph_of_object(given, config, str(path), labelled=labelled, preprocessing=preprocessing)


def load_saved(path: Path) -> Any:
    """What `torch.save` wrote, if it is a graph of PyG, tensors and plain values."""
    from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals
    from torch_geometric.data import EdgeAttr, TensorAttr
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.graph_store import EdgeLayout
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    attributes = (DataEdgeAttr, DataTensorAttr, EdgeAttr, EdgeLayout, TensorAttr)
    parts = (BaseStorage, GlobalStorage, NodeStorage, EdgeStorage)
    allowed_before = get_safe_globals()  # PyG's import allows classes that would run code
    clear_safe_globals()
    add_safe_globals([Data, HeteroData, *parts, *attributes])
    try:
        return load_torch(path)
    except UserError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # zipfile and torch stumble over damage in many ways
        # torch's own advice is to load it unsafely.
        found = "is damaged, or torch.save did not write it."
        if (named := re.search(r"GLOBAL ([\w.]+)", str(error))) is not None:
            found = f"holds {named[1]}; only PyG's Data, tensors and plain values are loaded."
        hint = 'Save tensors and plain values alone: torch.save(data.to_dict(), "graph.pt").'
        raise UserError(f"{path} {found}", hint) from error
    finally:
        clear_safe_globals()
        add_safe_globals(allowed_before)


def _node_tables(
    spec: NodeSpec, arrays: _Arrays, config: FilesConfig, *, labelled: bool, needs_x: bool
) -> tuple[NodeSpec, dict[str, Table]]:
    """The nodes of a type as a table of features, one of labels, and arrays of splits."""
    path = Path(arrays.source)
    x_name, x = arrays.take(*FEATURE_ARRAYS)
    if x is not None and (x.ndim != 2 or x.dtype.kind not in "biuf"):
        hint = f"Give a row of numbers a node; one number a node is {x_name}.reshape(-1, 1)."
        raise arrays.wrong(x_name, x, "[num_nodes, num_features]", hint)
    # Of several types that have labels, those of others than the target are left out.
    may_be_target = config.target in (None, spec.name)
    y_name, y = arrays.take(*LABEL_ARRAYS) if may_be_target else ("", None)
    masks = [arrays.take(*usual) for usual in SPLIT_ARRAYS.values()] if may_be_target else []
    _, counted = arrays.take("num_nodes")
    if x is None and needs_x:
        raise UserError(
            f"{arrays.source} has no x.",
            "Give x a row of numbers a node; a column of ones will do: torch.ones(num_nodes, 1).",
        )
    num_nodes = int(counted) if counted is not None else arrays.num_nodes if x is None else len(x)
    if x is not None and len(x) != num_nodes:
        raise UserError(
            f"{arrays.source}: num_nodes is {num_nodes:,}, but x has {len(x):,} rows.",
            "Leave num_nodes out, or give x a row for each node.",
        )
    matrix = np.empty((num_nodes, 0), np.float32) if x is None else x
    table = ArrayTable(path, {}, matrix, names=arrays.columns.get(x_name, ()))
    tables: dict[str, Table] = {spec.place: table}
    label, split = ColumnSpec(f"{spec.place}.y"), ColumnSpec(f"{spec.place}.split")
    if y is not None:
        label = replace(label, files=(y_name,), keys={"column": "y"})
        if labelled:
            tables[label.place] = _label_table(arrays, y_name, y, num_nodes, config.task)
        there = {mask_name: mask for mask_name, mask in masks if mask is not None}
        if labelled and there:
            split = replace(split, files=tuple(there))
            tables[split.place] = ArrayTable(path, {}, np.empty((0, 0)), there)
    features = () if x is None else None
    return replace(spec, features=features, label=label, split=split), tables


def _label_table(arrays: _Arrays, name: str, y: AnyArray, num_nodes: int, task: str) -> ArrayTable:
    """Labels as a table: one column of classes, or a matrix of flags or quantities."""
    if y.ndim not in (1, 2) or len(y) != num_nodes:
        hint = f"Give it a row a node: there are {num_nodes:,}."
        raise arrays.wrong(name, y, "[num_nodes]", hint)
    y = y[:, 0] if y.shape[1:] == (1,) else y
    path, is_quantity = Path(arrays.source), task == "regression"
    kind = pd.api.types.infer_dtype(y.reshape(-1))
    if y.dtype == object and not kind.startswith("mixed"):  # gaps are None, NaN or pandas' NA
        gap = "" if kind == "string" else -1 if y.ndim == 1 and not is_quantity else np.nan
        y = np.array(np.where(pd.isna(y), gap, y).tolist())
    if y.dtype.kind not in ("biuf" if is_quantity or y.ndim == 2 else "biufUS"):
        hint = "Labels are integers or texts for classes, 0 and 1, or quantities."
        raise arrays.wrong(name, y, "labels", hint)
    if is_quantity:
        columns = [f"{name}_{at}" for at in range(y.shape[1])] if y.ndim == 2 else [name]
        return ArrayTable(path, {}, y.reshape(len(y), -1), names=columns)
    if y.ndim == 2:
        return ArrayTable(path, {}, y)
    if y.dtype.kind == "f" and task == "auto":
        raise UserError(
            f"{arrays.source}: {name} holds floats, which may be quantities or classes.",
            "Set task.type=node_regression for quantities, or dataset.task=multiclass (binary, if "
            "there are two) for classes.",
        )
    return ArrayTable(path, {name: y})


def _edge_table(arrays: _Arrays, weight_names: Sequence[str], spec: EdgeSpec) -> ArrayTable:
    """Edges as a table of both ends and weights, if there are some of these names."""
    name, ends = arrays.take(*PAIR_ARRAYS)
    if ends is None:
        hint = "Give edge_index of shape [2, num_edges]; without edges: [2, 0]."
        raise UserError(f"{arrays.source} has no edge_index.", hint)
    if ends.size and ends.dtype.kind not in "iu":
        hint = "An edge's ends are row numbers of x: edge_index.long()."
        if ends.shape[:1] == ends.shape[1:]:
            hint = "A matrix of edges is called adj, and its rows are sources."
        raise arrays.wrong(name, ends, "integers", hint)
    # torch's empty tensors are floats.
    found = {"edge_index": ends if ends.size else ends.astype(np.int64)}
    weight_name, weight = arrays.take(*weight_names) if weight_names else ("", None)
    found |= {} if weight is None else {weight_name: weight}
    return table_of_arrays(Path(f"{arrays.source}: {name}"), found, spec)


def _ids(arrays: _Arrays, num_nodes: int) -> AnyArray | None:
    """The user's own ids, None where they are 0, 1, …."""
    name, ids = arrays.take(*ID_ARRAYS)
    if ids is None:
        return None
    if ids.shape != (num_nodes,) or ids.dtype.kind not in "iuUSO" or pd.isna(ids).any():
        hint = f"Give an id a node: there are {num_nodes:,}."
        raise arrays.wrong(name, ids, "[num_nodes]", hint)
    ids = ids.astype(str) if ids.dtype == object else ids
    if len(np.unique(ids)) < num_nodes:
        raise UserError(f"{arrays.source}: {name} has an id twice.", "Give each node its own id.")
    if ids.dtype.kind in "iu":
        return None if (ids == np.arange(num_nodes)).all() else ids.astype(np.int64)
    return ids if ids.dtype.kind == "S" else utf8(ids)


def _is_typed(attributes: Mapping[Any, Any]) -> bool:
    """Whether attributes are those of a `HeteroData`: mappings by node type and edge type."""
    return any(isinstance(value, Mapping) for value in attributes.values())


def _by_type(
    attributes: Mapping[Any, Any], source: str
) -> tuple[dict[NodeType, _Arrays], dict[EdgeType, _Arrays]]:
    """The arrays of each type; node types are also those that only edges name."""
    if not _is_typed(attributes):
        arrays = _arrays(attributes, source)
        return {NODE: arrays}, {EDGE: arrays}
    nodes: dict[NodeType, _Arrays] = {}
    edges: dict[EdgeType, _Arrays] = {}
    for name, of_type in attributes.items():
        if not isinstance(of_type, Mapping) or name == _GLOBAL:
            continue
        if isinstance(name, str):
            nodes[name] = _arrays(of_type, f"{source}[{name!r}]")
        elif isinstance(name, tuple) and len(name) == 3 and all(isinstance(n, str) for n in name):
            edges[name] = _arrays(of_type, f"{source}[{name}]", square=False)
        else:
            raise UserError(
                f"{source}: {name!r} is no node type and no edge type.",
                "A node type is a text, an edge type three: ('author', 'writes', 'paper').",
            )
    if not edges:
        raise UserError(
            f"{source} has no edge types.",
            "Give it edges: data['author', 'writes', 'paper'].edge_index = edge_index.",
        )
    for edge_type in edges:  # some types have no attributes
        for name in edge_type[::2]:
            nodes.setdefault(name, _Arrays(f"{source}[{name!r}]", {}))
    return nodes, edges


def _attributes(given: object, source: str) -> Mapping[Any, Any]:
    """The attributes of the one graph that an object is or holds; of a typed one by type."""
    attributes = _as_given(given, source)
    if not any(str(name).endswith("_dict") for name in attributes):
        return attributes
    by_type: dict[Any, dict[str, Any]] = {}  # OGB has each attribute by type
    for name, values in attributes.items():
        for type_name, value in values.items() if isinstance(values, Mapping) else ():
            by_type.setdefault(type_name, {})[name.removesuffix("_dict")] = value
    return by_type


def _as_given(given: Any, source: str) -> Mapping[Any, Any]:
    """The attributes of the one graph that an object is or holds, under its own names."""
    if hasattr(given, "get_idx_split"):  # a data set of OGB
        return {**_as_given(given[0], source), **given.get_idx_split()}
    num_graphs = len(given) if isinstance(given, list | Dataset) else 1
    if isinstance(given, Batch):
        num_graphs = given.num_graphs
    elif isinstance(given, tuple):
        graph, other = given[0], given[1] if len(given) in (2, 3) else ()
        is_dict = isinstance(other, dict | None)
        names = graph.keys() if isinstance(graph, Mapping) and len(given) == 2 else ()
        if "edge_index_dict" in names or ("edge_index" in names and not is_dict):
            return {**graph, "y": other}  # OGB's pair of a graph and labels
        # What PyG's `InMemoryDataset` saves: all graphs end to end, and where each ends.
        num_graphs = len(given)
        if is_dict:
            num_graphs = max((len(ends) - 1 for _, ends in nested_iter(other or {})), default=1)
    if num_graphs != 1:
        raise UserError(
            f"{source} holds {num_graphs:,} graphs.",
            "One graph is learnt from, node by node: give one of them.",
        )
    if isinstance(given, Data | HeteroData):
        return dict(given.to_dict())
    if isinstance(given, Mapping):
        return given if _is_typed(given) else {str(name): v for name, v in given.items()}
    if isinstance(given, list | tuple | Dataset):
        return _as_given(given[0], source)
    raise UserError(
        f"{source} is a {type(given).__module__}.{type(given).__qualname__}.",
        "Give a PyG Data: Data(x=x, y=y, edge_index=edge_index).",
    )


def _arrays(attributes: Mapping[str, Any], source: str, *, square: bool = True) -> _Arrays:
    """The attributes that are arrays; sparse ones become an edge index, or dense."""
    arrays: dict[str, AnyArray] = {}
    columns = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if name in (*ADJACENCIES, "adj_t") and "edge_index" not in attributes:
            matrix = _scipy_matrix(value, source)
            # Rows of `adj_t` are targets.
            arrays |= edges_of(matrix.T if name == "adj_t" else matrix, source, square=square)
            continue
        arrays[name] = _array(value, f"{source}: {name}")
        names = [str(column) for column in getattr(value, "columns", ())]  # of a data frame
        if len(set(names)) == len(names) and not all(map(str.isdecimal, names)):
            columns[name] = names
    num_labels = [np.atleast_1d(arrays[name]).shape[0] for name in LABEL_ARRAYS if name in arrays]
    return _Arrays(source, arrays, columns, max(num_labels, default=0))


def _scipy_matrix(value: Any, source: str) -> Any:
    """A sparse adjacency matrix as SciPy's."""
    if isinstance(value, Tensor) and value.layout != torch.strided:
        entries = torch.Tensor.to_sparse(value.detach().cpu()).coalesce()
        places, size = tuple(entries.indices().numpy()), tuple(value.shape)
        return scipy.sparse.coo_array((entries.values().numpy(), places), shape=size)
    if hasattr(value, "to_scipy"):  # torch_sparse's SparseTensor
        return value.to_scipy(layout="coo")
    if not scipy.sparse.issparse(value):
        hint = "Give edge_index instead: torch_geometric.utils.dense_to_sparse(adj)[0]."
        raise UserError(f"{source}: the adjacency matrix is a {type(value).__name__}.", hint)
    return value


def _array(value: Any, what: str) -> AnyArray:
    """An attribute as an array."""
    if isinstance(value, Tensor):
        tensor = value.detach()
        num_bytes = tensor.numel() * tensor.element_size()
        is_sparse = tensor.layout != torch.strided
        # A dense one, too, may repeat one number as often as it likes.
        if is_sparse or num_bytes > tensor.untyped_storage().nbytes():
            refuse_beyond_memory(what, num_bytes)
        tensor = (tensor.to_dense() if is_sparse else tensor).cpu()
        return np.asarray(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)
    if scipy.sparse.issparse(value):
        return densified(value, what)
    # NumPy would make floats of integers of pandas with gaps.
    has_gaps = getattr(value, "hasnans", False) and value.dtype.kind != "f"
    array: AnyArray = np.asarray(value, object if has_gaps else None)
    if array.dtype != object:
        return array
    if hasattr(value, "columns") and all(kind.kind in "biuf" for kind in value.dtypes):
        # Numbers of several types.
        return np.asarray(value.to_numpy(np.float64, na_value=np.nan))
    return array.astype(str) if all(isinstance(each, str) for each in array.flat) else array


def content_digest(graph: GraphData) -> str:
    """Hexadecimal digest of all that a graph holds: equal graphs share a store."""
    digest = blake2b(digest_size=20)

    def add(name: str, value: Any) -> None:
        is_array = isinstance(value, np.ndarray)
        kind = f"{value.dtype.str}{list(value.shape)}" if is_array else repr(value)
        digest.update(f"{name}:{kind};".encode())
        if is_array and value.size:
            digest.update(np.ascontiguousarray(value).data.cast("B"))

    for name, value in vars(graph).items():
        if name not in ("dataset", "nodes", "edges", "splits"):
            add(name, value)
    for split in SPLITS:
        add(split, np.asarray(graph.splits.get(split, ())))
    for edge_type, edges in graph.edges.items():
        for name, value in vars(edges).items():
            add(f"{edge_type} {name}", value)
    for node_type, nodes in graph.nodes.items():
        for name, value in vars(nodes).items():
            if name != "features":
                add(f"{node_type} {name}", value)
        for start in range(0, nodes.num_nodes, _DIGEST_ROWS):
            add(node_type, nodes.rows(start, min(start + _DIGEST_ROWS, nodes.num_nodes)))
    return digest.hexdigest()
