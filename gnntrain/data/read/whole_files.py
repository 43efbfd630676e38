"""Files of a whole graph, `dataset.data`: saved PyG graphs, arrays in an npz, GraphML.

No code in a file is run: a pickle may contain PyG's `Data` and its parts, tensors and plain values.
Formats that can only be read by running code are refused, with the lines that convert them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnntrain.config.graph_spec import spec_of_files
from gnntrain.data.array_files import TORCH_SUFFIXES, load_arrays, load_torch, unpack_graph
from gnntrain.data.conversions import conversion_hint
from gnntrain.data.graph import EDGE, NODE, GraphData
from gnntrain.data.preprocessing import AnyPreprocessing
from gnntrain.data.read.graph import read_graph
from gnntrain.data.table_files import GRAPHML_SUFFIX
from gnntrain.data.tables import BadRows, unreadable
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_SUFFIXES = (*TORCH_SUFFIXES, ".npz", GRAPHML_SUFFIX)


def read_whole_graph(
    path: Path,
    config: FilesConfig,
    *,
    labelled: bool,
    preprocessing: AnyPreprocessing | None = None,
) -> GraphData:
    """The graph in a file.

    Args:
        path: A pt file of a `Data` or `HeteroData`, of its `to_dict()`, or of what PyG's
            `InMemoryDataset` keeps; an npz file of arrays by PyG's names; or GraphML, which is read
            as a table of nodes and one of edges.
        config: Name, task, metric, split, and what else makes a graph of it.
        labelled: False: for a graph to predict on; labels and splits are not read.
        preprocessing: What makes the features of a model that was trained on another graph.
    """
    from gnntrain.data.read.objects import graph_of_object

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
    from torch_geometric.data import Data, EdgeAttr, HeteroData, TensorAttr
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
