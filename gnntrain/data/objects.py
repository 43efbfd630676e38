"""Graphs given as objects in Python: PyG's `Data`, dictionaries of arrays, a `GraphData`.

Apart from `gnntrain.data.graph_arrays`, which turns arrays into a graph, because PyG takes a second
to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset, HeteroData

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.data.array_files import MASK_ARRAYS, SPLIT_ARRAYS
from gnntrain.data.conversions import dgl_hint, networkx_hint
from gnntrain.data.graph import (
    NODE,
    SPLITS,
    AnyArray,
    EdgeType,
    FeatureRows,
    GraphData,
    HeteroGraphData,
    NodeType,
)
from gnntrain.data.graph_arrays import graph_of_arrays, no_features
from gnntrain.data.hetero_arrays import hetero_graph_of_arrays
from gnntrain.data.preprocessing import AnyPreprocessing, Preprocessing, of_one_type
from gnntrain.data.sparse import ADJACENCIES, densified, edges_of
from gnntrain.data.store_meta import canonical_json
from gnntrain.data.tables import refuse_beyond_memory
from gnntrain.errors import UserError

_WHOLE_GRAPH_KEYS = {
    *("data", "split", "split_ratio", "split_seed", "stratify", "weight_column", "task", "metric"),
    *("missing", "standardize"),
}
"""Keys of `FilesConfig` that say something of a graph that is no table."""

_NODE_LISTS = {*chain(*SPLIT_ARRAYS.values())} - {*MASK_ARRAYS}
_DIGEST_ROWS = 1 << 16
_GLOBAL = "_global_store"
"""Where PyG keeps what is neither of nodes nor of edges."""


def graph_of_object(
    given: object,
    config: FilesConfig,
    source: str = "data",
    *,
    labelled: bool = True,
    preprocessing: AnyPreprocessing | None = None,
) -> HeteroGraphData:
    """A user's graph from an object.

    Args:
        given: A PyG `Data` or `HeteroData`, or a list or data set of one; a mapping of arrays or
            tensors by PyG's names, for a typed graph of such mappings by node type and edge type; a
            `GraphData` or `HeteroGraphData`.
        config: Name, task, metric, split, and what else makes a graph of it.
        source: What the object is called in messages.
        labelled: False: for a graph to predict on; labels and splits are not read.
        preprocessing: What makes the features of a model that was trained on another graph, of a
            typed one by node type.

    Raises:
        UserError: It is no such object, or has a mistake.
    """
    if isinstance(given, HeteroGraphData):
        _refuse_keys_without_use(given, config, source)
        _refuse_other_columns(given, preprocessing, source)
        graph = copy(given)
        graph.dataset, graph.labelled = config.name, labelled and given.labelled
        return graph
    attributes = _attributes(given, source)
    if _is_typed(attributes):
        _refuse_keys_without_use(given, config, source, is_typed=True)
        by_type = None if isinstance(preprocessing, Preprocessing) else preprocessing
        return _typed_graph(attributes, config, source, labelled=labelled, preprocessing=by_type)
    _refuse_keys_without_use(given, config, source)
    made_by = of_one_type(preprocessing, source)
    arrays = _arrays(attributes, source)
    made = graph_of_arrays(arrays, config, source, labelled=labelled, preprocessing=made_by)
    if made.features is None:
        raise no_features(source)
    if isinstance(given, Mapping):
        _refuse_two_meanings(made, source)
    return made


def _refuse_other_columns(
    given: HeteroGraphData,
    preprocessing: AnyPreprocessing | None,
    source: str,
) -> None:
    """Refuse finished features for a model whose features were made of columns."""
    finished = {name: nodes.preprocessing for name, nodes in given.nodes.items()}
    asked = {NODE: preprocessing} if isinstance(preprocessing, Preprocessing) else preprocessing
    for name, made_by in (asked or {}).items():
        if made_by != finished.get(name) and not made_by.is_identity:
            raise UserError(
                f"{source} is a {type(given).__name__}, and the model's features were made of "
                "columns.",
                "Give tables, or a PyG Data, with the columns it was trained on.",
            )


def _is_typed(attributes: Mapping[Any, Any]) -> bool:
    """Whether attributes are those of a `HeteroData`: mappings by node type and edge type."""
    return any(isinstance(value, Mapping) for value in attributes.values())


def _typed_graph(
    attributes: Mapping[Any, Any],
    config: FilesConfig,
    source: str,
    *,
    labelled: bool = True,
    preprocessing: Mapping[NodeType, Preprocessing] | None = None,
    is_own: bool = True,
) -> HeteroGraphData:
    """A typed graph from what `HeteroData.to_dict()` gives."""
    nodes: dict[NodeType, Mapping[str, AnyArray]] = {}
    edges: dict[EdgeType, Mapping[str, AnyArray]] = {}
    for name, given in attributes.items():
        if not isinstance(given, Mapping) or name == _GLOBAL:
            continue
        if isinstance(name, str):
            nodes[name] = _arrays(given, f"{source}[{name!r}]")
        elif isinstance(name, tuple) and len(name) == 3 and all(isinstance(n, str) for n in name):
            edges[name] = _arrays(given, f"{source}[{name}]", square=False)
        else:
            raise UserError(
                f"{source}: {name!r} is no node type and no edge type.",
                "A node type is a text, an edge type three: ('author', 'writes', 'paper').",
            )
    return hetero_graph_of_arrays(
        nodes,
        edges,
        config,
        source,
        labelled=labelled,
        preprocessing=preprocessing,
        is_own=is_own,
    )


def _refuse_two_meanings(graph: GraphData, source: str) -> None:
    """Raise a UserError where an edge's ends may be rows of `x` or the user's own ids.

    In a file of features and one of edges they are ids; in a PyG `Data` they are rows.
    """
    ids = graph.node_ids
    if ids is None or ids.dtype.kind != "i" or not len(graph.src):
        return
    if np.isin(graph.src, ids).all() and np.isin(graph.dst, ids).all():
        raise UserError(
            f"{source} has ids, and edge_index may hold them or count the rows of x.",
            "Leave the ids out if it counts rows. If it holds ids, give the file as "
            "dataset.features and as dataset.edges.",
        )


def from_pyg(data: Data, dataset: str, *, split: int = 0, quantities: bool = False) -> GraphData:
    """A PyG `Data` of a data set as `GraphData`; see `graph_of_arrays` for what is read.

    Args:
        data: A graph of one type; it may be without features.
        dataset: Name of the data set.
        split: Which of its splits; of a graph without masks, which of the random ones.
        quantities: Whether its labels are quantities.

    Raises:
        UserError: There is no split of this number, or the graph has a mistake.
    """
    arrays = _arrays(data.to_dict(), dataset)
    config = FilesConfig(split=split, task="regression" if quantities else "auto")
    graph = graph_of_arrays(arrays, config, dataset, is_own=False)
    graph.dataset = dataset
    return graph


def from_pyg_hetero(
    data: HeteroData,
    dataset: str,
    *,
    split: int = 0,
    target: NodeType | None = None,
    quantities: bool = False,
) -> HeteroGraphData:
    """A PyG `HeteroData` of a data set as `HeteroGraphData`, see `from_pyg`.

    Args:
        data: A typed graph; types may be without features.
        dataset: Name of the data set.
        split: See `from_pyg`.
        target: The node type to learn; None: the only one that has labels.
        quantities: See `from_pyg`.

    Raises:
        UserError: See `from_pyg`; or there is no such node type.
    """
    config = FilesConfig(split=split, task="regression" if quantities else "auto")
    config = config.for_target(target)
    graph = _typed_graph(data.to_dict(), config, dataset, is_own=False)
    graph.dataset = dataset
    return graph


def _refuse_keys_without_use(
    given: object, config: FilesConfig, source: str, *, is_typed: bool = False
) -> None:
    """Refuse keys that are about other graphs: nothing that was asked for is left undone."""
    is_done = isinstance(given, HeteroGraphData)
    known = {"task"} if is_done else _WHOLE_GRAPH_KEYS - ({"weight_column"} if is_typed else set())
    for key, field in FilesConfig.model_fields.items():
        if key in known or key in DatasetConfig.model_fields:
            continue
        if getattr(config, key) != field.default:
            raise UserError(
                f"dataset.{key}: {source} is a {type(given).__name__}, which is taken as it is."
                if is_done
                else f"dataset.{key}: {source} is a graph of arrays; the key is about tables.",
                "Leave it out, or give tables as dataset.features and dataset.edges.",
            )


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
    if hasattr(given, "get_idx_split"):  # a data set of OGB
        return {**_as_given(given[0], source), **given.get_idx_split()}
    if isinstance(given, Batch) and given.num_graphs > 1:
        raise _several(source, given.num_graphs)
    if isinstance(given, Data | HeteroData):
        return dict(given.to_dict())
    if isinstance(given, Mapping):
        return given if _is_typed(given) else {str(name): v for name, v in given.items()}
    if _is_ogbs(given):
        return {**given[0], "y": given[1]}
    if isinstance(given, tuple) and len(given) in (2, 3) and isinstance(given[1], dict | None):
        return _of_processed(given[0], given[1], source)
    if isinstance(given, list | tuple | Dataset):
        if len(given) != 1:
            raise _several(source, len(given))
        return _as_given(given[0], source)
    raise _unknown(given, source)


def _of_processed(data: Any, slices: Mapping[Any, Any] | None, source: str) -> Mapping[Any, Any]:
    """The graph in what PyG's `InMemoryDataset` saves: all graphs end to end, and their ends."""
    num_graphs = max((len(ends) - 1 for ends in _all_ends(slices or {})), default=1)
    if num_graphs != 1:
        raise _several(source, num_graphs)
    return _as_given(data, source)


def _is_ogbs(given: object) -> bool:
    """Whether it is OGB's pair of a graph and labels; PyG's `InMemoryDataset` saves another."""
    match given:
        case ({"edge_index_dict": _}, _):
            return True
        case ({"edge_index": _}, labels):
            return not isinstance(labels, dict | None)
    return False


def _all_ends(slices: Mapping[Any, Any]) -> Iterator[Any]:
    """The ends of each attribute, of a typed graph in mappings by type."""
    for ends in slices.values():
        if isinstance(ends, Mapping):
            yield from _all_ends(ends)
        else:
            yield ends


def _several(source: str, number: int) -> UserError:
    return UserError(
        f"{source} holds {number:,} graphs.",
        "One graph is learnt from, node by node: give one of them.",
    )


def _unknown(given: object, source: str) -> UserError:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    library = kind.partition(".")[0]
    known = {"networkx": networkx_hint, "dgl": dgl_hint}
    hint = "Give a PyG Data: Data(x=x, y=y, edge_index=edge_index)."
    kind = kind.removeprefix("builtins.")
    return UserError(f"{source} is a {kind}.", known[library]() if library in known else hint)


def _arrays(
    attributes: Mapping[str, Any], source: str, *, square: bool = True
) -> dict[str, AnyArray]:
    """The attributes that are arrays; sparse ones become an edge index, or dense."""
    _refuse_other_orders(attributes, source)
    arrays: dict[str, AnyArray] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if name in (*ADJACENCIES, "adj_t") and "edge_index" not in attributes:
            arrays |= _of_adjacency(value, source, transposed=name == "adj_t", square=square)
        else:
            arrays[name] = _array(value, f"{source}: {name}")
    return arrays


def _refuse_other_orders(attributes: Mapping[str, Any], source: str) -> None:
    """Refuse columns of pandas whose rows are not in the order of the others'."""
    indices = {
        name: value.index
        for name, value in attributes.items()
        if hasattr(value, "iloc") and not name.startswith("edge") and name not in _NODE_LISTS
    }
    first, rows = next(iter(indices.items()), ("", None))
    for name, index in indices.items():
        if not index.equals(rows):
            raise UserError(
                f"{source}: {name} has another index than {first}.",
                f"Give {name}.loc[{first}.index], or {name}.to_numpy() if its order is the same.",
            )
    if rows is not None and not rows.is_monotonic_increasing and set(rows) == {*range(len(rows))}:
        raise UserError(
            f"{source}: the index of {first} has the row numbers in another order.",
            f"Give {first}.sort_index(), or {first}.to_numpy() if its order is right.",
        )


def _of_adjacency(
    value: Any, source: str, *, transposed: bool, square: bool
) -> dict[str, AnyArray]:
    """`edge_index` and `edge_weight` of a sparse matrix: of `adj_t`, rows are targets."""
    import scipy.sparse

    if isinstance(value, Tensor) and value.layout != torch.strided:
        entries = torch.Tensor.to_sparse(value.detach().cpu()).coalesce()
        places, size = tuple(entries.indices().numpy()), tuple(value.shape)
        value = scipy.sparse.coo_array((entries.values().numpy(), places), shape=size)
    elif hasattr(value, "to_scipy"):  # torch_sparse's SparseTensor
        value = value.to_scipy(layout="coo")
    if not scipy.sparse.issparse(value):
        hint = "Give edge_index instead: torch_geometric.utils.dense_to_sparse(adj)[0]."
        raise UserError(f"{source}: the adjacency matrix is a {type(value).__name__}.", hint)
    return edges_of(value.T if transposed else value, source, square=square)


def _array(value: Any, what: str) -> AnyArray:
    import scipy.sparse

    if isinstance(value, Tensor):
        return _of_tensor(value, what)
    if scipy.sparse.issparse(value):
        return densified(value, what)
    array: AnyArray = np.asarray(value)
    if array.dtype != object:
        return array
    if hasattr(value, "columns") and all(kind.kind in "biuf" for kind in value.dtypes):
        # Numbers of several types.
        return np.asarray(value.to_numpy(np.float64, na_value=np.nan))
    return array.astype(str) if all(isinstance(each, str) for each in array.flat) else array


def _of_tensor(tensor: Tensor, what: str) -> AnyArray:
    tensor = tensor.detach()
    num_bytes = tensor.numel() * tensor.element_size()
    is_sparse = tensor.layout != torch.strided
    # A dense one, too, may repeat one number as often as it likes.
    if is_sparse or num_bytes > tensor.untyped_storage().nbytes():
        refuse_beyond_memory(what, num_bytes)
    tensor = (tensor.to_dense() if is_sparse else tensor).cpu()
    array: AnyArray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def content_digest(graph: HeteroGraphData) -> str:
    """Hexadecimal digest of all that a graph holds: equal graphs share a store."""
    fields = {
        name: getattr(graph, name)
        for name in ("target", "num_classes", "task", "metric", "reverse", "labelled", "ogb_name")
    }
    fields["summary"] = None if graph.summary is None else graph.summary.model_dump(mode="json")
    fields["edges"] = [["/".join(name), edges.symmetric] for name, edges in graph.edges.items()]
    arrays: dict[str, AnyArray | None] = {
        **{"labels": graph.labels, "class_names": graph.class_names},
        **{split: np.asarray(graph.splits[split]) for split in SPLITS if split in graph.splits},
    }
    for edge_type, edges in graph.edges.items():
        for key in ("src", "dst", "weight"):
            arrays[f"{edge_type} {key}"] = getattr(edges, key)
    nodes_fields = {}
    for name, nodes in graph.nodes.items():
        made_by, names = nodes.preprocessing, nodes.feature_names
        nodes_fields[name] = {
            "num_nodes": nodes.num_nodes,
            "preprocessing": None if made_by is None else made_by.model_dump(mode="json"),
            "feature_names": None if names is None else list(names),
        }
        arrays[f"{name} ids"] = nodes.ids
    fields["nodes"] = nodes_fields
    digest = blake2b(canonical_json(fields).encode(), digest_size=20)
    for name, array in arrays.items():
        digest.update(_head(name, array))
        if array is not None:
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    for nodes in graph.nodes.values():
        for rows in _feature_rows(nodes.features, nodes.num_nodes):
            digest.update(_head("features", rows))
            digest.update(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")
    return digest.hexdigest()


def _head(name: str, array: AnyArray | None) -> bytes:
    told = "none" if array is None else f"{array.dtype.str}{list(array.shape)}"
    return f"{name}:{told};".encode()


def _feature_rows(features: AnyArray | FeatureRows | None, num_nodes: int) -> Iterator[AnyArray]:
    if features is None:
        return
    for start in range(0, num_nodes, _DIGEST_ROWS):
        stop = min(start + _DIGEST_ROWS, num_nodes)
        if isinstance(features, np.ndarray):
            yield features[start:stop]
        else:
            yield features.rows(start, stop)
