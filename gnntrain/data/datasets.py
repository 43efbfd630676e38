"""Builders of all data sets, by name.

Nothing heavy is imported until a graph is built.
"""

from __future__ import annotations

from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from gnntrain.config import (
    BuiltinConfig,
    DatasetConfig,
    FilesConfig,
    SyntheticConfig,
    SyntheticMAGConfig,
)
from gnntrain.config.published import PUBLISHED
from gnntrain.data.graph import JSON, HeteroGraphData
from gnntrain.data.preprocessing import AnyPreprocessing
from gnntrain.data.raw_files import PublishedBuilder, default_root
from gnntrain.data.read.files import FilesBuilder
from gnntrain.errors import UserError
from gnntrain.plugins import DATASETS, find_plugin, load_plugin, source_digest, told


class DatasetBuilder(Protocol):
    """Makes the graph of one data set."""

    def identity(self) -> dict[str, JSON]:
        """Plain JSON that identifies the graph; cheap, and equal exactly for equal graphs."""
        ...

    def build(self) -> HeteroGraphData:
        """Build the graph: reads, downloads and computes.

        Raises:
            UserError: It cannot be built; the message names the missing or wrong item.
        """
        ...


class SyntheticBuilder:
    """Builds a random graph, of one type or of many."""

    def __init__(self, config: SyntheticConfig | SyntheticMAGConfig) -> None:
        self._config = config

    def identity(self) -> dict[str, JSON]:
        """The graph's sizes, shares and seed."""
        options = self._config.model_dump(exclude=set(DatasetConfig.model_fields))
        return {"dataset": self._config.name, **options}

    def build(self) -> HeteroGraphData:
        """Generate the graph."""
        from gnntrain.data.synthetic import synthetic_graph, synthetic_mag

        if isinstance(self._config, SyntheticMAGConfig):
            return synthetic_mag(self._config)
        return synthetic_graph(self._config)


class ObjectBuilder:
    """Stores a graph that was given as an object in Python.

    Args:
        given: See `gnntrain.data.read.objects.graph_of_object`.
        config: Name, task, metric, split.
        labelled: False: for a graph to predict on; labels and splits are neither needed nor read.
        preprocessing: What makes the features of the model that predicts; None: it is learnt.

    Raises:
        UserError: It is no graph, or has a mistake.
    """

    def __init__(
        self,
        given: object,
        config: FilesConfig,
        *,
        labelled: bool = True,
        preprocessing: AnyPreprocessing | None = None,
    ) -> None:
        from gnntrain.data.read.objects import content_digest, graph_of_object

        self._graph = graph_of_object(given, config, labelled=labelled, preprocessing=preprocessing)
        self._digest = content_digest(self._graph)

    def identity(self) -> dict[str, JSON]:
        """The graph's name and a digest of its content: the same object finds its store again."""
        return {"dataset": self._graph.dataset, "content": self._digest}

    def build(self) -> HeteroGraphData:
        """The graph."""
        return self._graph


class PackageBuilder:
    """Builds a data set that an installed package offers by entry point.

    Raises:
        UserError: No installed package offers it.
    """

    def __init__(self, config: BuiltinConfig) -> None:
        self._point = find_plugin(DATASETS, config.name)
        self._config = config

    def identity(self) -> dict[str, JSON]:
        """The package's entry point, its source, its version, and the arguments."""
        return {
            "dataset": self._config.name,
            "made_by": self._point.value,
            "source": source_digest(self._point.module),
            "version": None if self._point.dist is None else self._point.dist.version,
            "split": self._config.split,
            "root": self._config.root,
            "target": self._config.target,
            "quantities": self._config.quantities,
        }

    def build(self) -> HeteroGraphData:
        """Call the package.

        Raises:
            UserError: It fails, or returns something else than a graph.
        """
        name, given_root = self._config.name, self._config.root
        root = default_root() / name if given_root is None else Path(given_root)
        try:
            made: Any = load_plugin(DATASETS, name)(str(root))
            graph = self._graph(made)
        except UserError:
            raise
        except Exception as error:  # another package's code may raise any exception
            raise UserError(
                f"dataset={name}: {self._point.value} made no graph ({told(error)}).",
                "It must return a PyG Data or HeteroData, a PyG data set of one, a GraphData or a "
                "HeteroGraphData.",
            ) from error
        graph = copy(graph)
        graph.dataset = name
        return graph

    def _graph(self, made: Any) -> HeteroGraphData:
        """The graph that a package made, or the first of its data set."""
        from torch_geometric.data import Data, HeteroData

        from gnntrain.data.read.objects import from_pyg

        if isinstance(made, HeteroGraphData):
            return made
        first = made if isinstance(made, Data | HeteroData) else made[0]
        config = self._config
        return from_pyg(
            first,
            config.name,
            split=config.split,
            target=config.target,
            quantities=config.quantities,
        )


def builder_for(
    config: DatasetConfig,
    *,
    labelled: bool = True,
    preprocessing: AnyPreprocessing | None = None,
) -> DatasetBuilder:
    """The builder of the data set that `config` describes.

    Args:
        config: The data set.
        labelled: Whether a user's own files must have labels and splits.
        preprocessing: What makes features of a user's own files, of a typed graph by node type;
            None: it is learnt from them.

    Raises:
        UserError: There is no such data set, it has no split of that number, or a file is not
            given.
    """
    if isinstance(config, SyntheticConfig | SyntheticMAGConfig):
        return SyntheticBuilder(config)
    if isinstance(config, FilesConfig):
        return FilesBuilder(config, labelled=labelled, preprocessing=preprocessing)
    if not isinstance(config, BuiltinConfig):
        raise UserError(f"dataset={config.name}: there is no such data set.")
    published = PUBLISHED.get(config.name)
    if published is None:
        return PackageBuilder(config)
    module, _, attribute = published.builder.partition(":")
    builder: type[PublishedBuilder] = getattr(import_module(module), attribute)
    return builder(config)
