"""The files that the schema of a typed graph names, and their builder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TypeVar

from gnntrain.config import DatasetConfig, FilesConfig, Problem
from gnntrain.config.graph_schema import GraphTables, read_schema, schema_error
from gnntrain.config.problems import nearest
from gnntrain.data.file_digests import identified
from gnntrain.data.files import ROLES
from gnntrain.data.graph import JSON, HeteroGraphData, NodeType
from gnntrain.data.preprocessing import Preprocessing, plain_json
from gnntrain.data.store_meta import digest_of
from gnntrain.data.store_place import stores_folder
from gnntrain.paths import file_names, is_folder

_Table = TypeVar("_Table")

# What is kept of the same files; raised when it grows. 2: which columns of edges are not read.
_READING = 2


class SchemaBuilder:
    """Builds a typed graph from the tables that a schema names.

    Args:
        config: The path of the schema, and how tables are read.
        labelled: False: for a graph to predict on; labels and splits are neither needed nor read.
        preprocessing: What makes the features of the model that predicts, by node type; None: it
            is learnt from the files.

    Raises:
        UserError: The schema cannot be read, or has mistakes; or a file is not there.
    """

    def __init__(
        self,
        config: FilesConfig,
        *,
        labelled: bool = True,
        preprocessing: Mapping[NodeType, Preprocessing] | None = None,
    ) -> None:
        path = Path(config.schema or "")
        tables = read_schema(path)
        # Below the schema's own folder, if no other is given.
        folder = path.parent if config.root is None else Path(config.root)
        self._files = SchemaFiles(path, tables, _found(path, tables, folder, labelled=labelled))
        self.config = config
        self._labelled = labelled
        self._preprocessing = preprocessing

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [path for paths in self._files.paths.values() for path in paths]

    def identity(self) -> dict[str, JSON]:
        """The schema's content, paths and contents of the files, and how they are read."""
        excluded = {*DatasetConfig.model_fields, *ROLES, "schema"}
        made_by = self._preprocessing
        return {
            "dataset": self.config.name,
            "schema": self._files.tables.to_dict(),
            "files": identified(self._files.paths, stores_folder(self.config)),
            "target": self.config.target,
            "options": self.config.model_dump(mode="json", exclude=excluded),
            "split": self.config.split,
            "labelled": self._labelled,
            "preprocessing": None if made_by is None else digest_of(plain_json(made_by)),
            "reading": _READING,
        }

    def build(self) -> HeteroGraphData:
        """Read the files.

        Raises:
            UserError: A file cannot be read, or (with `bad_rows=error`) has bad rows.
        """
        from gnntrain.data.schema_graph import read_typed_graph

        return read_typed_graph(
            self.config, self._files, labelled=self._labelled, preprocessing=self._preprocessing
        )


@dataclass(frozen=True)
class SchemaFiles:
    """A schema and the files that it names.

    Attributes:
        path: The schema.
        tables: Its content.
        paths: The files of each of its keys, such as `nodes.author` and `nodes.author.label`.
    """

    path: Path
    tables: GraphTables
    paths: Mapping[str, list[Path]]


def _found(
    schema: Path, tables: GraphTables, folder: Path, *, labelled: bool
) -> dict[str, list[Path]]:
    """The files of each key.

    Raises:
        UserError: Some are not there.
    """
    problems: list[Problem] = []
    found: dict[str, list[Path]] = {}
    for key, given, is_label in _given(tables):
        if is_label and not labelled:
            continue
        found[key] = []
        for pattern in given:
            paths = _matching(folder, pattern)
            found[key] += paths
            if not paths:
                problems.append(_missing(key if is_label else f"{key}.files", folder, pattern))
    if problems:
        raise schema_error(schema, problems)
    return found


def _given(tables: GraphTables) -> Iterator[tuple[str, Iterable[str], bool]]:
    """Key, names or patterns of files, and whether they are labels or splits."""
    for name, table in tables.nodes.items():
        yield f"nodes.{name}", table.files or (), False
    for key, mixed in keyed("nodes", tables.mixed_nodes):
        yield key, mixed.files, False
    for name, columns in {**tables.nodes, **tables.types}.items():
        for key, file in columns.own_files:
            yield f"nodes.{name}.{key}", (file,), True
    for edge_type, edges in tables.edges.items():
        yield f"edges.{'/'.join(edge_type)}", edges.files, False
    for key, mixed_edges in keyed("edges", tables.mixed_edges):
        yield key, mixed_edges.files, False


def keyed(kind: str, tables: Sequence[_Table]) -> Iterator[tuple[str, _Table]]:
    """Tables with a column of types, each with its key in the schema: a list has places."""
    for at, table in enumerate(tables):
        yield kind if len(tables) == 1 else f"{kind}[{at}]", table


def _matching(folder: Path, pattern: str) -> list[Path]:
    """The file of that name, or the files that match a pattern: part-2 stands before part-10."""
    path = (folder / Path(pattern).expanduser()).absolute()
    if path.is_file():
        return [path]
    if not any(sign in pattern for sign in "*?["):
        return []
    # The folder's own signs mean nothing; a pattern with a root of its own replaces the folder.
    wanted = Path(escape(str(folder.absolute()))) / Path(pattern).expanduser()
    found = Path(wanted.anchor).glob(str(wanted.relative_to(wanted.anchor)))
    return sorted((file for file in found if file.is_file()), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d+)", str(path))
    ]


def _missing(key: str, folder: Path, pattern: str) -> Problem:
    path = (folder / pattern).absolute()
    if is_folder(path):
        return Problem(key, pattern, f"a file, but this is a folder; write {pattern}/*.csv")
    if not is_folder(path.parent):
        return Problem(key, pattern, f"a file, but there is no folder {path.parent}")
    near = nearest(path.name, file_names(path.parent))
    hint = None if near is None else f"did you mean {near}?"
    return Problem(key, pattern, f"a file in {path.parent}, but there is none", hint)
