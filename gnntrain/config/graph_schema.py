"""The YAML file of `dataset.schema`: which tables hold the types of a typed graph.

    nodes:
      author: {files: "author-*.parquet", id: author_id, features: [h, emb], label: area}
      venue: {}                       # no table: the ids come from the edges
    edges:
      author/writes/paper: {files: writes.csv, source: author_id, target: paper_id}
    reverse: true                     # adds paper/rev_writes/author

`nodes` and `edges` may also be one table, or a list of tables, with a column of types:

    nodes: {files: nodes.csv, id: id, type: kind}
    edges: {files: edges.csv, source: from, target: to, type: relation}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from gnntrain.config.mistakes import argument_problems
from gnntrain.config.problems import Problem, did_you_mean, shown, told
from gnntrain.config.types import Names, Section, Text, described
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import UserError

EdgeType = tuple[str, str, str]

Files = Annotated[
    tuple[Text, ...],
    Field(strict=False, min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    described("a file, a pattern such as author-*.csv, or a list of them"),
]


class ColumnFile(Section):
    """Labels or splits in a file of their own."""

    file: Text
    """The file, a table or an array; or a pattern such as labels-*.csv."""
    id: Text | None = None
    """Column of the node id; null: recognised by its name, or the rows are those of the nodes."""
    column: Names | None = None
    """Column of the label or the split, or a list of labels; null: recognised by its name."""


class SplitFiles(Section):
    """Splits as files of node ids; each may be a pattern such as train-*.csv."""

    train: Text
    """Ids of the training nodes."""
    val: Text | None = None
    """Ids of the validation nodes."""
    test: Text | None = None
    """Ids of the test nodes."""


class NodeColumns(Section):
    """The columns of one node type."""

    features: Names | None = None
    """Columns of features, by name or pattern; null: all columns without another use; []: none, a
    model learns the rows."""
    categorical: Names = ()
    """Columns of categories: each category becomes a feature of 0 and 1."""
    ignore: Names = ()
    """Columns to leave out, by name or pattern."""
    missing: Literal["refuse", "mean", "zero", "indicator"] | None = None
    """What to do about a missing feature; null: as dataset.missing says."""
    standardize: bool | None = None
    """Scale each column of numbers to mean 0 and standard deviation 1; null: as dataset.standardize
    says."""
    label: Names | ColumnFile | None = None
    """Column of the label, a list of them, or a file: {file: labels.csv, column: area}."""
    split: Text | ColumnFile | SplitFiles | None = None
    """Column that says train, val or test; or a file: {file: split.csv, column: fold}; or files of
    ids: {train: train.npy, val: val.npy, test: test.npy}."""
    foreign_keys: Annotated[
        Mapping[str, Text], described("a mapping from columns to node types")
    ] = Field(default_factory=dict)
    """Columns that name a node of another type: each makes an edge type, `this/column/other`."""

    @property
    def own_files(self) -> Iterator[tuple[str, str]]:
        """Files of labels and splits, each with its key."""
        for key in ("label", "split"):
            given = getattr(self, key)
            if isinstance(given, ColumnFile):
                yield key, given.file
            elif isinstance(given, SplitFiles):
                yield from ((f"{key}.{name}", file) for name, file in given if file is not None)


class NodeTable(NodeColumns):
    """The table of one node type."""

    files: Files | None = None
    """Its files; null: there is no table, and the ids come from the edges."""
    id: Text | None = None
    """Column of the node id; null: recognised by its name; none: row 0 is node 0, and so on."""


class MixedNodeTable(Section):
    """A table of several node types."""

    files: Files
    """Its files."""
    id: Text | None = None
    """Column of the node id; null: recognised by its name."""
    type: Text | None = None
    """Column of the node type; null: `type`."""
    types: Annotated[Mapping[str, Any], described("a mapping from node types to their columns")] = (
        Field(default_factory=dict)
    )
    """What single types have of their own: features, label, split and so on."""


class EdgeTable(Section):
    """The table of one edge type."""

    files: Files
    """Its files."""
    source: Text | None = None
    """Column of the source node; null: recognised by its name, else the first of two."""
    target: Text | None = None
    """Column of the target node; null: recognised by its name, else the second of two."""


class MixedEdgeTable(EdgeTable):
    """A table of several edge types."""

    type: Text | None = None
    """Column of the relation; null: `type` or `relation`."""
    source_type: Text | None = None
    """Column of the source node's type; null: told by its id."""
    target_type: Text | None = None
    """Column of the target node's type; null: told by its id."""


@dataclass(frozen=True)
class GraphTables:
    """The tables that a schema names.

    Attributes:
        nodes: The table of each node type that has an entry of its own.
        mixed_nodes: Tables with a column of node types.
        types: What single types of `mixed_nodes` have of their own.
        edges: The table of each edge type that has an entry of its own.
        mixed_edges: Tables with a column of relations.
        reverse: Whether the reverse of each edge type is added.
    """

    nodes: Mapping[str, NodeTable] = field(default_factory=dict)
    mixed_nodes: tuple[MixedNodeTable, ...] = ()
    types: Mapping[str, NodeColumns] = field(default_factory=dict)
    edges: Mapping[EdgeType, EdgeTable] = field(default_factory=dict)
    mixed_edges: tuple[MixedEdgeTable, ...] = ()
    reverse: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All that determines the graph, as plain data."""
        nodes = {name: table.model_dump(mode="json") for name, table in self.nodes.items()}
        types = {name: columns.model_dump(mode="json") for name, columns in self.types.items()}
        edges = {"/".join(name): e.model_dump(mode="json") for name, e in self.edges.items()}
        return {
            "nodes": nodes,
            "mixed_nodes": [table.model_dump(mode="json") for table in self.mixed_nodes],
            "types": types,
            "edges": edges,
            "mixed_edges": [table.model_dump(mode="json") for table in self.mixed_edges],
            "reverse": self.reverse,
        }


_Part = TypeVar("_Part", bound=Section)


def read_schema(path: Path) -> GraphTables:
    """The tables that a YAML file names.

    Raises:
        UserError: It cannot be read, or has mistakes: the message lists all of them.
    """
    try:
        raw = read_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"dataset.schema={path} cannot be read: {error}.", _EXAMPLE) from error
    tables, problems = tables_of(raw)
    if problems:
        raise schema_error(path, problems)
    return tables


def schema_error(path: Path, problems: Iterable[Problem]) -> UserError:
    """The error that lists the mistakes of a schema."""
    return UserError(told(problems, str(path)), _EXAMPLE)


_EXAMPLE = "docs/typed-graphs.md has an example of each key."


def tables_of(raw: object) -> tuple[GraphTables, list[Problem]]:
    """The tables of a schema's plain data, and every mistake."""
    reader = _Reader()
    tables = reader.read(raw)
    return tables, reader.problems


class _Reader:
    """Reads a schema part by part, and collects the mistakes."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read(self, raw: object) -> GraphTables:
        keys = self._mapping(raw, "the schema")
        for key in keys.keys() - {"nodes", "edges", "reverse"}:
            hint = did_you_mean(key, ("nodes", "edges", "reverse"))
            self._wrong(key, keys[key], "nodes, edges or reverse", hint)
        reverse = keys.get("reverse", False)
        if not isinstance(reverse, bool):
            self._wrong("reverse", reverse, "true or false")
        nodes, mixed_nodes = self._split(keys.get("nodes"), "nodes")
        edges, mixed_edges = self._split(keys.get("edges"), "edges")
        node_tables = {
            name: self._part(NodeTable, table, f"nodes.{name}") for name, table in nodes.items()
        }
        mixed = [self._part(MixedNodeTable, table, key) for key, table in mixed_nodes]
        tables = GraphTables(
            nodes=_known(node_tables),
            mixed_nodes=tuple(table for table in mixed if table is not None),
            types=_known(dict(self._types(mixed, [key for key, _ in mixed_nodes]))),
            edges=_known(dict(self._edges(edges))),
            mixed_edges=tuple(
                table
                for key, raw_table in mixed_edges
                if (table := self._part(MixedEdgeTable, raw_table, key)) is not None
            ),
            reverse=reverse is True,
        )
        self._check_names(nodes, tables)
        return tables

    def _split(self, raw: object, key: str) -> tuple[dict[str, object], list[tuple[str, object]]]:
        """Tables by type, and tables with a column of types, each with its key."""
        if isinstance(raw, list):
            return {}, [(f"{key}[{at}]", table) for at, table in enumerate(raw)]
        tables = self._mapping(raw, key)
        if isinstance(tables.get("files"), str | list):
            return {}, [(key, tables)]
        return tables, []

    def _types(
        self, mixed: Iterable[MixedNodeTable | None], keys: Iterable[str]
    ) -> Iterator[tuple[str, NodeColumns | None]]:
        for table, key in zip(mixed, keys, strict=True):
            for name, raw in table.types.items() if table is not None else ():
                yield name, self._part(NodeColumns, raw, f"{key}.types.{name}")

    def _edges(self, edges: Mapping[str, object]) -> Iterator[tuple[EdgeType, EdgeTable | None]]:
        for name, raw in edges.items():
            table = self._part(EdgeTable, raw, f"edges.{name}")
            parts = tuple(part.strip() for part in name.replace(",", "/").split("/"))
            if len(parts) != 3 or not all(parts):
                expects = "an edge type source/relation/target, such as author/writes/paper"
                self._wrong(f"edges.{name}", None, expects)
            else:
                yield (parts[0], parts[1], parts[2]), table

    def _part(self, kind: type[_Part], raw: object, key: str) -> _Part | None:
        keys = self._mapping(raw, key)
        try:
            return kind.model_validate(keys)
        except ValidationError as error:
            self.problems += argument_problems(error, kind, keys, f"{key}.")
        return None

    def _mapping(self, raw: object, key: str) -> dict[str, object]:
        if raw is None:
            return {}
        if not isinstance(raw, Mapping):
            self._wrong(key, raw, "keys, not a value")
            return {}
        return {str(name): value for name, value in raw.items()}

    def _wrong(self, key: str, value: object, expects: str, hint: str | None = None) -> None:
        self.problems.append(Problem(key, shown(value), expects, hint))

    def _check_names(self, nodes: Mapping[str, object], tables: GraphTables) -> None:
        """Types that are not there, and tables that nothing refers to."""
        if not (tables.nodes or tables.mixed_nodes or self.problems):
            self._wrong("nodes", None, "a table of each node type")
        if not (tables.edges or tables.mixed_edges or self.problems or _has_foreign_keys(tables)):
            self._wrong("edges", None, "a table of edges, or foreign_keys in one of nodes")
        for name in nodes:
            if any(sign in name for sign in "/,") or not name.isprintable() or not name:
                self._wrong(f"nodes.{name}", None, "a name without slash and comma")
        # Of tables with a column of types, the types are known when they are read.
        if tables.mixed_nodes:
            return
        for source, relation, target in tables.edges:
            for name in dict.fromkeys((source, target)):
                if name not in nodes:
                    key = f"edges.{source}/{relation}/{target}"
                    self._wrong(key, name, "node types that stand below nodes", _meant(name, nodes))
        for name, table in tables.nodes.items():
            for column, other in table.foreign_keys.items():
                if other not in nodes:
                    key = f"nodes.{name}.foreign_keys.{column}"
                    self._wrong(key, other, "a node type below nodes", _meant(other, nodes))
        self._check_reached(tables)

    def _check_reached(self, tables: GraphTables) -> None:
        ends = {name for source, _, target in tables.edges for name in (source, target)}
        ends |= {other for t in tables.nodes.values() for other in t.foreign_keys.values()}
        for name, table in tables.nodes.items():
            is_reached = name in ends or tables.mixed_edges or self.problems
            if table.files is None and not is_reached:
                self._wrong(f"nodes.{name}", None, "files, or an edge type that has its ids")


def _meant(name: str, nodes: Iterable[str]) -> str:
    return did_you_mean(name, nodes) or f"write `{name}: {{}}` below nodes"


def _known(parts: Mapping[Any, _Part | None]) -> dict[Any, _Part]:
    return {name: part for name, part in parts.items() if part is not None}


def _has_foreign_keys(tables: GraphTables) -> bool:
    return any(part.foreign_keys for part in (*tables.nodes.values(), *tables.types.values()))
