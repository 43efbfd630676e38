"""What a graph is read from: `GraphSpec`, its tables and columns by node type and edge type.

`spec_of_files` makes one of the keys of `dataset=files`, a graph of one node type and one edge
type; `read_schema` of the YAML file of `dataset.schema`:

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
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from gnntrain.config.mistakes import argument_problems
from gnntrain.config.problems import Problem, did_you_mean, shown, told
from gnntrain.config.types import Names, Section, Text, described
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config.datasets import FilesConfig

EdgeType = tuple[str, str, str]
NO_ID = "none"
"""The `id` of a table whose rows are the nodes 0, 1, 2, …."""

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
class TableSpec:
    """A table and the keys that speak of it.

    Attributes:
        place: Key of its files: `features`, `nodes.author`, `nodes.author.label`.
        files: Its files.
        keys: By the schema's word for one, keys that are called otherwise: `id` is
            `dataset.id_column`.
        header: Names that mark the first line of a text as a header, beside the usual ones.
    """

    place: str
    files: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    header: tuple[str, ...] = ()

    def key(self, word: str) -> str:
        """The key that a message names: `nodes.author.id`, `dataset.id_column`."""
        return self.keys.get(word, f"{self.place}.{word}")


@dataclass(frozen=True)
class ColumnSpec(TableSpec):
    """Columns of labels or of splits.

    Attributes:
        files: Their own files; empty: they are columns of the nodes' table.
        columns: Their names; None: recognised.
        id: Column of the node ids in these files, see `NodeSpec.id`.
        ignore: Columns of these files to leave out.
        parts: Of splits, files of the node ids of each instead.
    """

    columns: tuple[str, ...] | None = None
    id: str | None = None
    ignore: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_given(self) -> bool:
        """Whether columns or files are named."""
        return self.columns is not None or bool(self.files or self.parts)

    def asked(self) -> Iterator[tuple[str, str]]:
        """The columns that it names, each with its key."""
        yield from ((self.key("column"), name) for name in self.columns or ())


@dataclass(frozen=True)
class NodeSpec(TableSpec):
    """The nodes of one type: their table and its columns.

    Attributes:
        name: The node type; None: a column of the table says it, see `type`.
        id: Column of the node id; None: recognised; "none": row 0 is node 0, and so on.
        id_names: More names by which it is recognised.
        features, categorical, ignore, missing, standardize, foreign_keys: See `NodeColumns`.
        label: Their labels.
        split: Their splits.
        type: Column of the node type; None: `type`.
        unused: Names of columns that are no features, each with the reason.
    """

    name: str | None = None
    id: str | None = None
    id_names: tuple[str, ...] = ()
    features: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    missing: Literal["refuse", "mean", "zero", "indicator"] = "refuse"
    standardize: bool = False
    foreign_keys: Mapping[str, str] = field(default_factory=dict)
    label: ColumnSpec = field(default_factory=lambda: ColumnSpec("label"))
    split: ColumnSpec = field(default_factory=lambda: ColumnSpec("split"))
    type: str | None = None
    unused: Mapping[str, str] = field(default_factory=dict)

    def asked(self, *, labelled: bool = True) -> Iterator[tuple[str, str]]:
        """The columns that it names in the nodes' table, each with its key.

        Args:
            labelled: False: without those that a graph to predict on need not have.
        """
        several: dict[str, Iterable[str | None]] = {"id": (self.id,), "type": (self.type,)}
        several["foreign_keys"] = self.foreign_keys
        if labelled:
            several |= {"features": self.features or (), "categorical": self.categorical}
            several["ignore"] = self.ignore
        for word, names in several.items():
            yield from ((self.key(word), name) for name in names if name not in (None, NO_ID))


@dataclass(frozen=True)
class EdgeSpec(TableSpec):
    """Edges of one type, or of several: their table and its columns.

    Attributes:
        edge_type: Their type; None: a column of the table says the relation, see `type`.
        source, target, type, source_type, target_type: See `EdgeTable`, `MixedEdgeTable`.
        weight: Column of the weight; None: a table has none.
    """

    edge_type: EdgeType | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    type: str | None = None
    source_type: str | None = None
    target_type: str | None = None

    def asked(self) -> Iterator[tuple[str, str]]:
        """The columns that it names, each with its key."""
        for word in ("source", "target", "weight", "type", "source_type", "target_type"):
            if (name := getattr(self, word)) is not None:
                yield self.key(word), name


@dataclass(frozen=True)
class GraphSpec:
    """What a graph is read from.

    Attributes:
        nodes: Each node type that has an entry of its own.
        mixed_nodes: Tables with a column of node types.
        types: What single types of `mixed_nodes` have of their own.
        edges: The tables of edges.
        reverse: Whether the reverse of each edge type is added.
        schema: The file that says this; None: the keys of `dataset=files`, and the graph has one
            node type and one edge type.
        plain: All that determines the graph, as plain data.
    """

    nodes: Mapping[str, NodeSpec] = field(default_factory=dict)
    mixed_nodes: tuple[NodeSpec, ...] = ()
    types: Mapping[str, NodeSpec] = field(default_factory=dict)
    edges: tuple[EdgeSpec, ...] = ()
    reverse: bool = False
    schema: Path | None = None
    plain: Mapping[str, Any] = field(default_factory=dict)

    def files(self, *, labelled: bool) -> dict[str, tuple[str, ...]]:
        """Names or patterns of files by their places; without labels and splits unless labelled."""
        found = {part.place: part.files for part in (*self.nodes.values(), *self.mixed_nodes)}
        for nodes in (*self.nodes.values(), *self.types.values()) if labelled else ():
            for own in (nodes.label, nodes.split):
                found |= {own.place: own.files} if own.files else {}
                found |= {f"{own.place}.{name}": (file,) for name, file in own.parts.items()}
        return found | {edges.place: edges.files for edges in self.edges}

    def error(self, problems: Iterable[Problem]) -> UserError:
        """The error that lists mistakes in it."""
        if self.schema is not None:
            return UserError(told(problems, str(self.schema)), _EXAMPLE)
        hint = "Give a column's name, or its number from 0."
        return UserError(told(problems, "the configuration"), hint)


def spec_of_files(
    config: FilesConfig, node: str, edge: EdgeType, graph: Path | None = None
) -> GraphSpec:
    """What the keys of `dataset=files` say: a graph of one node type and one edge type.

    Args:
        config: The keys.
        node: The node type.
        edge: The edge type.
        graph: A file that holds both nodes and edges.
    """
    keys = {
        **{word: f"dataset.{word}" for word in NodeColumns.model_fields},
        **{word: f"dataset.{word}_column" for word in ("id", "label", "split", "source", "target")},
        "weight": "dataset.weight_column",
        "features": "dataset.feature_columns",
        "labels": "dataset.labels",
    }
    ends = (config.source_column, config.target_column, config.weight_column)
    named = (config.id_column, *(config.label_column or ()), config.split_column, *ends)
    header = tuple(name for name in named if name is not None)
    own: dict[str, Any] = {"id": config.id_column, "ignore": config.ignore, "header": header}
    nodes = NodeSpec(
        "features",
        (str(graph or config.features),),
        keys,
        name=node,
        features=config.feature_columns,
        categorical=config.categorical,
        missing=config.missing,
        standardize=config.standardize,
        label=ColumnSpec(
            "labels",
            () if config.labels is None else (config.labels,),
            {**keys, "column": "dataset.label_column"},
            columns=config.label_column,
            **own,
        ),
        split=ColumnSpec(
            "split",
            (config.split,) if isinstance(config.split, str) else (),
            {**keys, "column": "dataset.split_column"},
            columns=None if config.split_column is None else (config.split_column,),
            **own,
        ),
        **own,
    )
    edges = EdgeSpec("edges", (str(graph or config.edges),), keys, header, edge, *ends)
    return GraphSpec(nodes={node: nodes}, edges=(edges,))


def node_spec(
    name: str, place: str, columns: NodeColumns, config: FilesConfig, **table: Any
) -> NodeSpec:
    """A node type of a schema; what it leaves open, the configuration says."""
    own = {}
    for word, given in (("label", columns.label), ("split", columns.split)):
        found = ColumnSpec(f"{place}.{word}", keys={"column": f"{place}.{word}"})
        if isinstance(given, ColumnFile):
            found = ColumnSpec(found.place, (given.file,), columns=given.column, id=given.id)
        elif isinstance(given, SplitFiles):
            parts = {key: file for key, file in given if file is not None}
            found = replace(found, parts=parts)
        elif given is not None:
            found = replace(found, columns=(given,) if isinstance(given, str) else given)
        named = (*(found.columns or ()), *((found.id,) if found.id is not None else ()))
        own[word] = replace(found, header=named)
    spec = NodeSpec(
        place,
        keys={"labels": f"{place}.label"},
        name=name,
        id_names=ids_called(name),
        features=columns.features,
        categorical=columns.categorical,
        ignore=columns.ignore,
        missing=config.missing if columns.missing is None else columns.missing,
        standardize=config.standardize if columns.standardize is None else columns.standardize,
        foreign_keys=columns.foreign_keys,
        label=own["label"],
        split=own["split"],
        **table,
    )
    within = [part.columns or () for part in own.values() if not part.files]
    named = (*(column for _, column in spec.asked()), *chain(*within), *spec.id_names)
    return replace(spec, header=named)


def ids_called(node_type: str) -> tuple[str, ...]:
    """Names that say that a column holds ids of a node type, in lower case."""
    name = node_type.lower()
    return f"{name}_id", f"{name}id", f"id_{name}"


_Part = TypeVar("_Part", bound=Section)


def read_schema(path: Path, config: FilesConfig) -> GraphSpec:
    """What a YAML file says.

    Args:
        path: The file.
        config: Says what the file leaves open: what is done to features.

    Raises:
        UserError: It cannot be read, or has mistakes: the message lists all of them.
    """
    try:
        raw = read_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"dataset.schema={path} cannot be read: {error}.", _EXAMPLE) from error
    reader = SchemaReader(config)
    spec = replace(reader.read(raw), schema=path)
    if reader.problems:
        raise spec.error(reader.problems)
    return spec


_EXAMPLE = "docs/typed-graphs.md has an example of each key."


class SchemaReader:
    """Reads a schema's plain data part by part, and collects the mistakes.

    Args:
        config: See `read_schema`.
    """

    def __init__(self, config: FilesConfig) -> None:
        self.problems: list[Problem] = []
        self._config = config

    def read(self, raw: object) -> GraphSpec:
        """What the data say; where there are mistakes, the parts without any."""
        keys = self._mapping(raw, "the schema")
        for key in keys.keys() - {"nodes", "edges", "reverse"}:
            hint = did_you_mean(key, ("nodes", "edges", "reverse"))
            self._wrong(key, keys[key], "nodes, edges or reverse", hint)
        reverse = keys.get("reverse", False)
        if not isinstance(reverse, bool):
            self._wrong("reverse", reverse, "true or false")
        raw_nodes, raw_mixed = self._split(keys.get("nodes"), "nodes")
        nodes = _known(
            {name: self._part(NodeTable, t, f"nodes.{name}") for name, t in raw_nodes.items()}
        )
        mixed = _known({key: self._part(MixedNodeTable, table, key) for key, table in raw_mixed})
        types: dict[str, NodeColumns] = {}
        specs_of_types = {}
        for key, table in mixed.items():
            for name, own in table.types.items():
                place = f"{key}.types.{name}"
                if (columns := self._part(NodeColumns, own, place)) is not None:
                    types[name] = columns
                    specs_of_types[name] = node_spec(name, place, columns, self._config)
        raw_edges, raw_mixed = self._split(keys.get("edges"), "edges")
        edges = dict(self._edges(raw_edges))
        mixed_edges = _known(
            {key: self._part(MixedEdgeTable, table, key) for key, table in raw_mixed}
        )
        specs = {
            name: node_spec(name, f"nodes.{name}", t, self._config, files=t.files or (), id=t.id)
            for name, t in nodes.items()
        }
        spec = GraphSpec(
            nodes=specs,
            mixed_nodes=tuple(
                NodeSpec(key, t.files, id=t.id, type=t.type) for key, t in mixed.items()
            ),
            types=specs_of_types,
            edges=(
                *(
                    _edge_spec(f"edges.{'/'.join(edge_type)}", edge_type, table)
                    for edge_type, table in edges.items()
                ),
                *(_edge_spec(key, None, table) for key, table in mixed_edges.items()),
            ),
            reverse=reverse is True,
            plain={
                "nodes": {name: table.model_dump(mode="json") for name, table in nodes.items()},
                "mixed_nodes": [table.model_dump(mode="json") for table in mixed.values()],
                "types": {name: own.model_dump(mode="json") for name, own in types.items()},
                "edges": {"/".join(e): table.model_dump(mode="json") for e, table in edges.items()},
                "mixed_edges": [table.model_dump(mode="json") for table in mixed_edges.values()],
                "reverse": reverse is True,
            },
        )
        self._check_names(raw_nodes, spec)
        return spec

    def _split(self, raw: object, key: str) -> tuple[dict[str, object], list[tuple[str, object]]]:
        """Tables by type, and tables with a column of types, each with its key."""
        if isinstance(raw, list):
            return {}, [(f"{key}[{at}]", table) for at, table in enumerate(raw)]
        tables = self._mapping(raw, key)
        if isinstance(tables.get("files"), str | list):
            return {}, [(key, tables)]
        return tables, []

    def _edges(self, edges: Mapping[str, object]) -> Iterator[tuple[EdgeType, EdgeTable]]:
        for name, raw in edges.items():
            table = self._part(EdgeTable, raw, f"edges.{name}")
            parts = tuple(part.strip() for part in name.replace(",", "/").split("/"))
            if len(parts) != 3 or not all(parts):
                expects = "an edge type source/relation/target, such as author/writes/paper"
                self._wrong(f"edges.{name}", None, expects)
            elif table is not None:
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

    def _check_names(self, nodes: Mapping[str, object], spec: GraphSpec) -> None:
        """Types that are not there, and tables that nothing refers to."""
        foreign = [
            (f"{part.place}.foreign_keys.{column}", other)
            for part in (*spec.nodes.values(), *spec.types.values())
            for column, other in part.foreign_keys.items()
        ]
        if not (spec.nodes or spec.mixed_nodes or self.problems):
            self._wrong("nodes", None, "a table of each node type")
        if not (spec.edges or self.problems or foreign):
            self._wrong("edges", None, "a table of edges, or foreign_keys in one of nodes")
        for name in nodes:
            if any(sign in name for sign in "/,") or not name.isprintable() or not name:
                self._wrong(f"nodes.{name}", None, "a name without slash and comma")
        # Of tables with a column of types, the types are known when they are read.
        if spec.mixed_nodes:
            return
        types = [part.edge_type for part in spec.edges if part.edge_type is not None]
        for source, relation, target in types:
            for name in dict.fromkeys((source, target)):
                if name not in nodes:
                    key = f"edges.{source}/{relation}/{target}"
                    self._wrong(key, name, "node types that stand below nodes", _meant(name, nodes))
        for key, other in foreign:
            if other not in nodes:
                self._wrong(key, other, "a node type below nodes", _meant(other, nodes))
        ends = {name for source, _, target in types for name in (source, target)}
        ends |= {other for _, other in foreign}
        has_mixed_edges = len(types) < len(spec.edges)
        for name, part in spec.nodes.items():
            if not (part.files or name in ends or has_mixed_edges or self.problems):
                self._wrong(f"nodes.{name}", None, "files, or an edge type that has its ids")


def _edge_spec(place: str, edge_type: EdgeType | None, table: EdgeTable) -> EdgeSpec:
    columns = table.model_dump(exclude={"files"})
    spec = EdgeSpec(place, table.files, edge_type=edge_type, **columns)
    return replace(spec, header=tuple(column for _, column in spec.asked()))


def _meant(name: str, nodes: Iterable[str]) -> str:
    return did_you_mean(name, nodes) or f"write `{name}: {{}}` below nodes"


def _known(parts: Mapping[Any, _Part | None]) -> dict[Any, _Part]:
    return {name: part for name, part in parts.items() if part is not None}
