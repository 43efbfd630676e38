"""A user's own graph, `dataset=files`.

`dataset.features` has a row a node and defines the nodes; `dataset.edges` has a row an edge;
`dataset.labels` and `dataset.split` speak of nodes by the ids of the features file, or row by row
without ids.
Tables are CSV, TSV, other delimited text (packed with gzip, bzip2 or zstandard, too) or Parquet;
arrays are npy, npz or pt. `dataset.data` is one file of a whole graph instead
(`gnntrain.data.whole_files`). `gnntrain.data.text_table` says when a table has a header,
`gnntrain.data.file_columns` which column is the id, `gnntrain.data.file_target_columns` which ones
are labels and splits, `gnntrain.data.file_edges` which ones are the ends of an edge.

A row that cannot be used (too few fields, text for a number, an unknown node, …) is reported with
its file, line and reason; `dataset.bad_rows` says whether that is an error.
"""

from __future__ import annotations

from pathlib import Path

from gnntrain.config import DatasetConfig, FilesConfig
from gnntrain.data.file_digests import identified
from gnntrain.data.graph import JSON, HeteroGraphData
from gnntrain.data.preprocessing import AnyPreprocessing, of_one_type, plain_json
from gnntrain.data.store_meta import digest_of
from gnntrain.data.store_place import stores_folder
from gnntrain.errors import UserError

ROLES = ("data", "edges", "features", "labels", "split")
# What is kept of the same files; raised when it grows. 2: the classes' names. 3: the features'
# names and preprocessing. 4: ids and classes as they are written. 5: numbers are not rounded before
# they are standardised.
_READING = 5
_MISSING_HINTS = {
    "edges": "Give a file with one edge a row: source and target.",
    "features": "Give a file with one row of numbers a node; it defines the nodes. If there is "
    "nothing to tell, a column of ones or of the nodes' degrees will do.",
}


class FilesBuilder:
    """Builds a graph from the user's files.

    Args:
        config: The files and how they are read.
        labelled: False: for a graph to predict on; labels and splits are neither needed nor read.
        preprocessing: What makes the features of the model that predicts; None: it is learnt from
            the files. By node type for a typed graph, which is one of `dataset.data`.
    """

    def __init__(
        self,
        config: FilesConfig,
        *,
        labelled: bool = True,
        preprocessing: AnyPreprocessing | None = None,
    ) -> None:
        self.config = config
        self._labelled = labelled
        self._preprocessing = preprocessing
        self._paths = {
            role: Path(given).absolute()
            for role in ROLES
            if isinstance(given := getattr(config, role), str)
        }
        if "data" in self._paths:
            self._refuse_other_files()
            return
        if not self._paths:
            raise UserError(
                "no file of a graph is given.",
                "Set dataset.data, dataset.schema, or dataset.edges and dataset.features; in "
                "Python, train(config, data=data) takes an object.",
            )
        for role, hint in _MISSING_HINTS.items():
            if role not in self._paths:
                raise UserError(f"dataset.{role} is not given.", hint)

    def _refuse_other_files(self) -> None:
        others = [role for role in ROLES[1:] if role in self._paths]
        if others:
            raise UserError(
                f"dataset.data is a whole graph, and dataset.{others[0]} is given, too.",
                "Leave one of the two out.",
            )

    def identity(self) -> dict[str, JSON]:
        """Paths and contents of the files, and how they are read.

        Raises:
            UserError: A file is not there.
        """
        roles = ROLES if self._labelled else ("data", "edges", "features")
        read = {role: [path] for role, path in self._paths.items() if role in roles}
        excluded = {*DatasetConfig.model_fields, *ROLES, "schema"}
        options = self.config.model_dump(mode="json", exclude=excluded)
        identity: dict[str, JSON] = {
            "dataset": self.config.name,
            "files": identified(read, stores_folder(self.config)),
            "options": options,
        }
        identity["reading"] = _READING
        if self._labelled and isinstance(self.config.split, int):
            identity["split"] = self.config.split
        if not self._labelled:
            identity["unread"] = [role for role in ("labels", "split") if role in self._paths]
        if self._preprocessing is not None:
            identity["preprocessing"] = digest_of(plain_json(self._preprocessing))
        if self.config.target is not None:
            identity["target"] = self.config.target
        return identity

    def build(self) -> HeteroGraphData:
        """Read the files.

        Raises:
            UserError: A file cannot be read, or (with `bad_rows=error`) has bad rows.
        """
        from gnntrain.data.file_graph import read_graph
        from gnntrain.data.whole_files import read_whole_graph

        whole = self._paths.get("data")
        labelled, made_by = self._labelled, self._preprocessing
        if whole is not None:
            return read_whole_graph(whole, self.config, labelled=labelled, preprocessing=made_by)
        plain = of_one_type(made_by, f"dataset={self.config.name}")
        return read_graph(self.config, self._paths, labelled=labelled, preprocessing=plain)
