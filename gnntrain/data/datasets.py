"""Every data set by its name: who builds it, and what makes it.

Nothing heavy is imported until a graph is built.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from gnntrain.config import BuiltinConfig, DatasetConfig, FilesConfig, SyntheticConfig
from gnntrain.data.files import FilesBuilder
from gnntrain.data.graph import JSON, GraphData
from gnntrain.data.ogb_data import OGB_NAMES, OGBBuilder
from gnntrain.data.pyg_data import PYG_SPECS, PyGBuilder
from gnntrain.errors import UserError


class DatasetBuilder(Protocol):
    """Makes the graph of one data set."""

    def identity(self) -> dict[str, JSON]:
        """What makes the graph, as plain JSON; cheap, and equal exactly for equal graphs."""
        ...

    def build(self) -> GraphData:
        """Make the graph; may read, download and compute for long.

        Raises:
            UserError: It cannot be made; says what is missing or wrong.
        """
        ...


class SyntheticBuilder:
    """Builds a random graph."""

    def __init__(self, config: SyntheticConfig) -> None:
        self._name = config.name
        self._options = config.model_dump(exclude=set(DatasetConfig.model_fields))

    def identity(self) -> dict[str, JSON]:
        """The graph's sizes, shares and seed."""
        return {"dataset": self._name, **self._options}

    def build(self) -> GraphData:
        """Generate the graph."""
        from gnntrain.data.synthetic import synthetic_graph

        return replace(synthetic_graph(**self._options), dataset=self._name)


def builder_for(config: DatasetConfig, *, labelled: bool = True) -> DatasetBuilder:
    """The builder of the data set that `config` describes.

    Args:
        config: The data set.
        labelled: Whether a user's own files must say what is to be learnt.

    Raises:
        UserError: The data set has no split of that number, or a file is not given.
    """
    if isinstance(config, SyntheticConfig):
        return SyntheticBuilder(config)
    if isinstance(config, FilesConfig):
        return FilesBuilder(config, labelled=labelled)
    if isinstance(config, BuiltinConfig) and config.name in PYG_SPECS:
        return PyGBuilder(config)
    if isinstance(config, BuiltinConfig) and config.name in OGB_NAMES:
        return OGBBuilder(config)
    raise UserError(f"dataset={config.name}: there is no such data set.")
