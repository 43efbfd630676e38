"""Builders of all data sets, by name.

Nothing heavy is imported until a graph is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from gnntrain.config import (
    BuiltinConfig,
    DatasetConfig,
    FilesConfig,
    SyntheticConfig,
    SyntheticMAGConfig,
)
from gnntrain.config.published import PUBLISHED
from gnntrain.data.graph import JSON, GraphData
from gnntrain.data.preprocessing import AnyPreprocessing
from gnntrain.data.raw_files import PublishedBuilder, default_root
from gnntrain.errors import UserError
from gnntrain.plugins import DATASETS, find_plugin, load_plugin, source_digest, told

if TYPE_CHECKING:
    from gnntrain.data.read.files import FilesBuilder


@dataclass(frozen=True)
class KnownBuilder:
    """A builder whose identity is known at once."""

    known: dict[str, JSON]
    build: Callable[[], GraphData]

    def identity(self) -> dict[str, JSON]:
        return self.known


def builder_for(
    config: DatasetConfig,
    *,
    data: object = None,
    labelled: bool = True,
    preprocessing: AnyPreprocessing | None = None,
) -> FilesBuilder | PublishedBuilder | KnownBuilder:
    """The builder of the data set that `config` describes; UserError where there is no such data
    set, no split of that number, or a file is not given.

    Its `identity` is plain JSON, cheap, and equal exactly for equal graphs; `build` reads,
    downloads and computes, or raises a UserError that names a missing or wrong item.

    Args:
        data: The graph as an object in Python, see `gnntrain.data.read.objects.graph_of_object`,
            identified by its content; `config` is a `FilesConfig`, then.
        labelled: Whether a user's own files must have labels and splits.
        preprocessing: What makes features of a user's own files, of a typed graph by node type;
            None: it is learnt from them.
    """
    if isinstance(config, SyntheticConfig | SyntheticMAGConfig):
        options = config.model_dump(exclude=set(DatasetConfig.model_fields))
        is_typed = isinstance(config, SyntheticMAGConfig)
        make = f"gnntrain.data.synthetic:synthetic_{'mag' if is_typed else 'graph'}"
        return KnownBuilder({"dataset": config.name, **options}, lambda: resolve_name(make)(config))
    if isinstance(config, FilesConfig) and data is not None:
        from gnntrain.data.read.objects import content_digest, graph_of_object

        graph = graph_of_object(data, config, labelled=labelled, preprocessing=preprocessing)
        content = content_digest(graph)
        return KnownBuilder({"dataset": graph.dataset, "content": content}, lambda: graph)
    if isinstance(config, FilesConfig):
        from gnntrain.data.read.files import FilesBuilder

        return FilesBuilder(config, labelled=labelled, preprocessing=preprocessing)
    if not isinstance(config, BuiltinConfig):
        raise UserError(f"dataset={config.name}: there is no such data set.")
    if (published := PUBLISHED.get(config.name)) is not None:
        builder: type[PublishedBuilder] = resolve_name(published.builder)
        return builder(config)
    point = find_plugin(DATASETS, config.name)  # of an installed package
    identity: dict[str, JSON] = {
        "dataset": config.name,
        "made_by": point.value,
        "source": source_digest(point.module),
        "version": None if point.dist is None else point.dist.version,
    }
    identity |= {key: getattr(config, key) for key in ("split", "root", "target", "quantities")}
    return KnownBuilder(identity, partial(_graph_of_package, config, point))


def _graph_of_package(config: BuiltinConfig, point: EntryPoint) -> GraphData:
    """The graph that a package makes, or the first of its data set; UserError where it fails."""
    from torch_geometric.data import Data, HeteroData

    from gnntrain.data.read.objects import from_pyg

    name = config.name
    root = default_root() / name if config.root is None else Path(config.root)
    try:
        made: Any = load_plugin(DATASETS, name)(str(root))
        if isinstance(made, GraphData):
            return replace(made, dataset=name)
        data = made if isinstance(made, Data | HeteroData) else made[0]
        keys = {key: getattr(config, key) for key in ("split", "target", "quantities")}
        return from_pyg(data, name, **keys)
    except UserError:
        raise
    except Exception as error:  # another package's code may raise any exception
        raise UserError(
            f"dataset={name}: {point.value} made no graph ({told(error)}).",
            "It must return a PyG Data or HeteroData, a PyG data set of one, or a GraphData.",
        ) from error
