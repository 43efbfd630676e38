"""Graphs given as objects in Python: PyG's `Data`, dictionaries of arrays, a `GraphData`.

Apart from `gnntrain.data.graph_arrays`, which turns arrays into a graph, because PyG takes a second
to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset, HeteroData

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.data.conversions import dgl_hint, networkx_hint
from gnntrain.data.graph import SPLITS, AnyArray, FeatureRows, GraphData
from gnntrain.data.graph_arrays import graph_of_arrays, no_features
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.sparse import ADJACENCIES, densified, edges_of
from gnntrain.data.store_meta import canonical_json
from gnntrain.data.tables import refuse_beyond_memory
from gnntrain.errors import UserError

_WHOLE_GRAPH_KEYS = {
    *("data", "split", "split_ratio", "split_seed", "stratify", "weight_column", "task", "metric"),
    *("missing", "standardize"),
}
"""Keys of `FilesConfig` that say something of a graph that is no table."""

_DIGEST_ROWS = 1 << 16

HETERO = "typed graphs (HeteroData) do not work yet."
HETERO_HINT = (
    "Train on its homogeneous form, where types have features of one length: data.to_homogeneous()."
)


def graph_of_object(
    given: object,
    config: FilesConfig,
    source: str = "data",
    *,
    labelled: bool = True,
    preprocessing: Preprocessing | None = None,
) -> GraphData:
    """A user's graph from an object.

    Args:
        given: A PyG `Data`, or a list or data set of one; a mapping of arrays or tensors by PyG's
            names; a `GraphData`.
        config: Name, task, metric, split, and what else makes a graph of it.
        source: What the object is called in messages.
        labelled: False: for a graph to predict on; labels and splits are not read.
        preprocessing: What makes the features of a model that was trained on another graph.

    Raises:
        UserError: It is no such object, or has a mistake.
    """
    _refuse_keys_without_use(given, config, source)
    if isinstance(given, GraphData):
        if preprocessing not in (None, given.preprocessing) and not preprocessing.is_identity:
            raise UserError(
                f"{source} is a GraphData, and the model's features were made of columns.",
                "Give tables, or a PyG Data, with the columns it was trained on.",
            )
        return replace(given, dataset=config.name, labelled=labelled and given.labelled)
    arrays = _arrays(_attributes(given, source), source)
    graph = graph_of_arrays(arrays, config, source, labelled=labelled, preprocessing=preprocessing)
    if graph.features is None:
        raise no_features(source)
    if isinstance(given, Mapping):
        _refuse_two_meanings(graph, source)
    return graph


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


def from_pyg(data: Data, dataset: str, *, split: int = 0) -> GraphData:
    """A PyG `Data` of a data set as `GraphData`; see `graph_of_arrays` for what is read.

    Args:
        data: A graph of one type; it may be without features.
        dataset: Name of the data set.
        split: Which of its splits; of a graph without masks, which of the random ones.

    Raises:
        UserError: There is no split of this number, or the graph has a mistake.
    """
    arrays = _arrays(data.to_dict(), dataset)
    graph = graph_of_arrays(arrays, FilesConfig(split=split), dataset, is_own=False)
    return replace(graph, dataset=dataset)


def _refuse_keys_without_use(given: object, config: FilesConfig, source: str) -> None:
    """Refuse keys that are about other graphs: nothing that was asked for is left undone."""
    is_done = isinstance(given, GraphData)
    known = {"task"} if is_done else _WHOLE_GRAPH_KEYS
    for key, field in FilesConfig.model_fields.items():
        if key in known or key in DatasetConfig.model_fields:
            continue
        if getattr(config, key) != field.default:
            raise UserError(
                f"dataset.{key}: {source} is a GraphData, which is taken as it is."
                if is_done
                else f"dataset.{key}: {source} is a graph of arrays; the key is about tables.",
                "Leave it out, or give tables as dataset.features and dataset.edges.",
            )


def _attributes(given: object, source: str) -> Mapping[str, Any]:
    """The attributes of the one graph that an object is or holds."""
    if isinstance(given, HeteroData):
        raise UserError(f"{source}: {HETERO}", HETERO_HINT)
    if isinstance(given, Batch) and given.num_graphs > 1:
        raise _several(source, given.num_graphs)
    if isinstance(given, Data):
        return dict(given.to_dict())
    if isinstance(given, Mapping):
        if any(isinstance(value, Mapping) for value in given.values()):
            raise UserError(f"{source}: {HETERO}", HETERO_HINT)
        return {str(name): value for name, value in given.items()}
    if isinstance(given, tuple) and len(given) in (2, 3) and isinstance(given[1], dict | None):
        return _of_processed(given[0], given[1], source)
    if isinstance(given, list | tuple | Dataset):
        if len(given) != 1:
            raise _several(source, len(given))
        return _attributes(given[0], source)
    raise _unknown(given, source)


def _of_processed(data: Any, slices: Mapping[str, Any] | None, source: str) -> Mapping[str, Any]:
    """The graph in what PyG's `InMemoryDataset` saves: all graphs end to end, and their ends."""
    num_graphs = max((len(ends) - 1 for ends in (slices or {}).values()), default=1)
    if num_graphs != 1:
        raise _several(source, num_graphs)
    return _attributes(data, source)


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


def _arrays(attributes: Mapping[str, Any], source: str) -> dict[str, AnyArray]:
    """The attributes that are arrays; sparse ones become an edge index, or dense."""
    arrays: dict[str, AnyArray] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if name in (*ADJACENCIES, "adj_t") and "edge_index" not in attributes:
            arrays |= _of_adjacency(value, source, transposed=name == "adj_t")
        else:
            arrays[name] = _array(value, f"{source}: {name}")
    return arrays


def _of_adjacency(value: Any, source: str, *, transposed: bool) -> dict[str, AnyArray]:
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
    return edges_of(value.T if transposed else value, source)


def _array(value: Any, what: str) -> AnyArray:
    import scipy.sparse

    if isinstance(value, Tensor):
        return _of_tensor(value, what)
    if scipy.sparse.issparse(value):
        return densified(value, what)
    return np.asarray(value)


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


def content_digest(graph: GraphData) -> str:
    """Hexadecimal digest of all that a graph holds: equal graphs share a store."""
    digest = blake2b(digest_size=20)
    fields = {
        name: getattr(graph, name)
        for name in ("num_nodes", "num_classes", "task", "metric", "symmetric", "labelled")
    }
    fields["ogb_name"] = graph.ogb_name
    made_by = graph.preprocessing
    fields["preprocessing"] = None if made_by is None else made_by.model_dump(mode="json")
    fields["feature_names"] = None if graph.feature_names is None else list(graph.feature_names)
    fields["summary"] = None if graph.summary is None else graph.summary.model_dump(mode="json")
    digest.update(canonical_json(fields).encode())
    named = {
        **{name: getattr(graph, name) for name in ("src", "dst", "labels", "edge_weight")},
        **{name: getattr(graph, name) for name in ("node_ids", "class_names")},
        **{split: np.asarray(graph.splits[split]) for split in SPLITS if split in graph.splits},
    }
    for name, array in named.items():
        digest.update(_head(name, array))
        if array is not None:
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    for rows in _feature_rows(graph.features, graph.num_nodes):
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
