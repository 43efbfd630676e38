"""A user's own graph, `dataset=files`: tables and arrays, one file of it all, or a schema's tables.

`dataset.features` has a row a node and defines the nodes; `dataset.edges` has a row an edge;
`dataset.labels` and `dataset.split` speak of nodes by the ids of the features file, or row by row
without ids. `dataset.schema` names the tables of a typed graph instead
(`gnntrain.config.graph_spec`), and `dataset.data` is one file of a whole graph
(`gnntrain.data.read.objects`). Tables are CSV, TSV, other delimited text (packed with gzip,
bzip2 or zstandard, too), Parquet or Feather; arrays are npy, npz or pt.

A row that cannot be used (too few fields, text for a number, an unknown node, …) is reported with
its file, line and reason; `dataset.bad_rows` says whether that is an error.
"""

from __future__ import annotations

import re
from glob import glob
from pathlib import Path

from pydantic_core import to_jsonable_python

from gnntrain.config import DatasetConfig, FilesConfig, Problem
from gnntrain.config.graph_spec import GraphSpec, read_schema, spec_of_files
from gnntrain.config.problems import did_you_mean
from gnntrain.data.array_folder import digest_of
from gnntrain.data.file_digests import identified
from gnntrain.data.graph import EDGE, JSON, NODE, GraphData
from gnntrain.data.preprocessing import AnyPreprocessing
from gnntrain.data.stores import stores_folder
from gnntrain.data.tables import BadRows
from gnntrain.errors import UserError
from gnntrain.paths import file_names, is_folder

_ROLES = ("data", "edges", "features", "labels", "split")
# Raised when something else is kept of the same files.
_READING = 8
_FILES_HINT = (
    "Give dataset.edges with one edge a row, source and target, and dataset.features with one row "
    "of numbers a node (a column of ones will do); or dataset.schema, or dataset.data. In Python, "
    "train(config, data=data) takes an object."
)


class FilesBuilder:
    """Builds a graph from the user's files; `labelled`, `preprocessing`: see `read_graph`."""

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
        self._spec: GraphSpec | None = None
        given = {role: path for role in _ROLES if isinstance(path := getattr(config, role), str)}
        if config.schema is not None:
            path = Path(config.schema)
            self._spec = read_schema(path, config)
            # Below the schema's own folder, if no other is given.
            folder = path.parent if config.root is None else Path(config.root)
            self._paths = _files_of_schema(self._spec, folder, labelled=labelled)
            return
        if "data" in given:
            others = [role for role in given if role != "data"]
            if others:
                raise UserError(
                    f"dataset.data is a whole graph, and dataset.{others[0]} is given, too.",
                    "Leave one of the two out.",
                )
        elif missing := [role for role in ("edges", "features") if role not in given]:
            raise UserError(f"dataset.{' and dataset.'.join(missing)} is not given.", _FILES_HINT)
        else:
            self._spec = spec_of_files(config, NODE, EDGE)
        self._paths = {
            role: [Path(path).absolute()]
            for role, path in given.items()
            if labelled or role not in ("labels", "split")
        }

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [path for paths in self._paths.values() for path in paths]

    def identity(self) -> dict[str, JSON]:
        """Paths and contents of the files, and how they are read."""
        excluded = {*DatasetConfig.model_fields, *_ROLES, "schema"}
        made_by = self._preprocessing
        return {
            "dataset": self.config.name,
            "schema": None if self._spec is None else dict(self._spec.plain),
            "files": identified(self._paths, stores_folder(self.config)),
            "target": self.config.target,
            "options": self.config.model_dump(mode="json", exclude=excluded),
            "split": self.config.split if isinstance(self.config.split, int) else None,
            "labelled": self._labelled,
            "preprocessing": None if made_by is None else digest_of(to_jsonable_python(made_by)),
            "reading": _READING,
        }

    def build(self) -> GraphData:
        """Read the files."""
        from gnntrain.data.read.graph import read_graph
        from gnntrain.data.read.objects import read_whole_graph

        labelled, made_by = self._labelled, self._preprocessing
        if self._spec is None:
            (path,) = self._paths["data"]
            return read_whole_graph(path, self.config, labelled=labelled, preprocessing=made_by)
        bad = BadRows(self.config.bad_rows)
        return read_graph(
            self._spec, self._paths, self.config, bad, labelled=labelled, preprocessing=made_by
        )


def _files_of_schema(spec: GraphSpec, folder: Path, *, labelled: bool) -> dict[str, list[Path]]:
    """The files of a schema by their places: those of a pattern in natural order, part-2 before
    part-10.
    """
    problems: list[Problem] = []
    files: dict[str, list[Path]] = {}
    tables = spec.files(labelled=False)
    for place, patterns in spec.files(labelled=labelled).items():
        files[place] = []
        for pattern in patterns:
            path = (folder / Path(pattern).expanduser()).absolute()
            if path.is_file():
                files[place].append(path)
                continue
            wanted = str(Path(pattern).expanduser())
            # Signs in the name of the root mean nothing.
            names = glob(wanted, root_dir=folder, recursive=True, include_hidden=True)  # noqa: PTH207
            matches = [(folder / name).absolute() for name in names]
            matches = sorted((path for path in matches if path.is_file()), key=_natural_order)
            files[place] += matches
            if matches:
                continue
            key = f"{place}.files" if place in tables else place
            expected = f"a file in {path.parent}, but there is none"
            if is_folder(path):
                expected = f"a file, but this is a folder; write {pattern}/*.csv"
            near = did_you_mean(path.name, file_names(path.parent))
            problems.append(Problem(key, pattern, expected, near))
    if problems:
        raise spec.error(problems)
    return files


def _natural_order(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
