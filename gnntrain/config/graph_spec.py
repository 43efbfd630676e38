"""What a graph is read from: `GraphSpec`, its tables and columns by node type and edge type.

`spec_of_files` makes one of the keys of `dataset=files`, a graph of one node type and one edge
type; `read_schema` of the YAML file of `dataset.schema`, see docs/typed-graphs.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from gnntrain.config.mistakes import mistakes
from gnntrain.config.problems import Problem, did_you_mean, shown, told
from gnntrain.config.types import Names, Section, Text, described
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config.datasets import FilesConfig

EdgeType = tuple[str, str, str]
NO_ID = "none"
"""The `id` of a table whose rows are the nodes 0, 1, 2, …."""
TYPE_NAMES = ("type", "node_type", "label")
"""Names of the column of node types."""

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
    """A table and the keys that name it in messages.

    Attributes:
        place: Key of its files: `features`, `nodes.author`, `nodes.author.label`.
        files: Its files.
        keys: By the schema's word for a key, keys that are called otherwise: `id` is
            `dataset.id_column`.
    """

    place: str
    files: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)

    _words: ClassVar[tuple[str, ...]] = ()

    def key(self, word: str) -> str:
        """The key that a message names: `nodes.author.id`, `dataset.id_column`."""
        return self.keys.get(word, f"{self.place}.{word}")

    @property
    def header(self) -> tuple[str, ...]:
        """Names that mark the first line of a text as a header, beside the usual ones."""
        return tuple(name for _, name in self.asked())

    def asked(self, *, labelled: bool = True) -> Iterator[tuple[str, str]]:
        """The columns of its table that it names, each with its key; unless `labelled`, without
        those that a graph to predict on need not have."""
        for word in self._words:
            names = getattr(self, word) or ()
            if labelled or word not in ("features", "categorical", "ignore"):
                names = (names,) if isinstance(names, str) else names
                yield from (
                    (self.key(word), name) for name in names if (word, name) != ("id", NO_ID)
                )


@dataclass(frozen=True)
class ColumnSpec(TableSpec):
    """Columns of labels or of splits: of the nodes' table, if they have no files of their own.

    Attributes:
        columns: Their names; None: recognised.
        id: Column of the node ids in these files, see `NodeTable`.
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

    @property
    def header(self) -> tuple[str, ...]:
        return (*(self.columns or ()), *([] if self.id is None else [self.id]))

    def asked(self, *, labelled: bool = True) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        yield from ((self.key("column"), name) for name in self.columns or ())


@dataclass(frozen=True)
class NodeSpec(TableSpec):
    """The nodes of one type: their table and its columns, see `NodeTable`.

    Attributes:
        name: The node type; None: a column of the table says it, see `MixedNodeTable`.
        id_names: More names by which the column of ids is recognised.
        types: What single types of a table of several types have of their own.
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
    types: Mapping[str, NodeSpec] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)

    _words = ("id", "type", "foreign_keys", "features", "categorical", "ignore")

    @property
    def header(self) -> tuple[str, ...]:
        names = [name for _, name in self.asked()]
        for own in (self.label, self.split):
            names += () if own.files else own.columns or ()
        names += [name for of_type in self.types.values() for name in of_type.header]
        return (*names, *self.id_names, *(TYPE_NAMES if self.name is None else ()))


@dataclass(frozen=True)
class EdgeSpec(TableSpec):
    """Edges of one type, or of several: their table and its columns, see `MixedEdgeTable`.

    `edge_type` is None where a column of the table says the relation.
    """

    edge_type: EdgeType | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    type: str | None = None
    source_type: str | None = None
    target_type: str | None = None

    _words = ("source", "target", "weight", "type", "source_type", "target_type")


@dataclass(frozen=True)
class GraphSpec:
    """What a graph is read from.

    Attributes:
        nodes: Each node type that has an entry of its own.
        mixed_nodes: Tables with a column of node types.
        schema: The file that says this; None: the keys of `dataset=files`, and the graph has one
            node type and one edge type.
        plain: What the file says, as plain data.
    """

    nodes: Mapping[str, NodeSpec] = field(default_factory=dict)
    mixed_nodes: tuple[NodeSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    reverse: bool = False
    schema: Path | None = None
    plain: Mapping[str, Any] = field(default_factory=dict)

    @property
    def types(self) -> dict[str, NodeSpec]:
        """What single types of `mixed_nodes` have of their own."""
        return {name: part for mixed in self.mixed_nodes for name, part in mixed.types.items()}

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

    `graph` is a file that holds both nodes and edges.
    """
    words = ("id", "label", "split", "source", "target", "weight")
    keys = {
        **{word: f"dataset.{word}" for word in (*NodeColumns.model_fields, "labels")},
        **{word: f"dataset.{word}_column" for word in words},
        "features": "dataset.feature_columns",
    }
    own: dict[str, Any] = {"id": config.id_column, "ignore": config.ignore}

    def columns(place: str, file: object, word: str, names: tuple[str, ...] | None) -> ColumnSpec:
        own_keys = {**keys, "column": f"dataset.{word}_column"}
        files = (file,) if isinstance(file, str) else ()
        return ColumnSpec(place, files, own_keys, columns=names, **own)

    split = config.split_column
    nodes = NodeSpec(
        "features",
        (str(graph or config.features),),
        keys,
        name=node,
        features=config.feature_columns,
        categorical=config.categorical,
        missing=config.missing,
        standardize=config.standardize,
        label=columns("labels", config.labels, "label", config.label_column),
        split=columns("split", config.split, "split", None if split is None else (split,)),
        **own,
    )
    ends = (config.source_column, config.target_column, config.weight_column)
    edges = EdgeSpec("edges", (str(graph or config.edges),), keys, edge, *ends)
    return GraphSpec(nodes={node: nodes}, edges=(edges,))


def node_spec(
    name: str, place: str, columns: NodeColumns, config: FilesConfig, **table: Any
) -> NodeSpec:
    """A node type of a schema; what it leaves open, the configuration says."""

    def own(word: str, given: str | Names | ColumnFile | SplitFiles | None) -> ColumnSpec:
        key = f"{place}.{word}"
        if isinstance(given, ColumnFile):
            return ColumnSpec(key, (given.file,), columns=given.column, id=given.id)
        if isinstance(given, SplitFiles):
            parts = {split: file for split, file in given if file is not None}
            return ColumnSpec(key, keys={"column": key}, parts=parts)
        names = (given,) if isinstance(given, str) else given
        return ColumnSpec(key, keys={"column": key}, columns=names)

    return NodeSpec(
        place,
        keys={"labels": f"{place}.label"},
        name=name,
        id_names=ids_called(name),
        missing=columns.missing or config.missing,
        standardize=config.standardize if columns.standardize is None else columns.standardize,
        **columns.model_dump(include={"features", "categorical", "ignore", "foreign_keys"}),
        label=own("label", columns.label),
        split=own("split", columns.split),
        **table,
    )


def ids_called(node_type: str) -> tuple[str, ...]:
    """Names that say that a column holds ids of a node type, in lower case."""
    name = node_type.lower()
    return f"{name}_id", f"{name}id", f"id_{name}"


_Part = TypeVar("_Part", bound=Section)
_Mixed = TypeVar("_Mixed", bound=Section)
_EXAMPLE = "docs/typed-graphs.md has an example of each key."


def read_schema(path: Path, config: FilesConfig) -> GraphSpec:
    """What a YAML file says, and `config` what it leaves open: what is done to features.

    Raises:
        UserError: It cannot be read, or has mistakes: the message lists all of them.
    """
    try:
        raw = read_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"dataset.schema={path} cannot be read: {error}.", _EXAMPLE) from error
    spec, problems = spec_of_schema(raw, config)
    spec = replace(spec, schema=path)
    if problems:
        raise spec.error(problems)
    return spec


def spec_of_schema(raw: object, config: FilesConfig) -> tuple[GraphSpec, list[Problem]]:
    """What a schema's plain data say, and its mistakes; the parts that have some are left out."""
    problems: list[Problem] = []

    def wrong(key: str, value: object, expects: str, hint: str | None = None) -> None:
        problems.append(Problem(key, shown(value), expects, hint))

    def mapping(raw: object, key: str) -> dict[str, object]:
        if not isinstance(raw, Mapping | None):
            wrong(key, raw, "keys, not a value")
            return {}
        return {str(name): value for name, value in (raw or {}).items()}

    def parts(
        kind: type[_Part], tables: Mapping[str, object], prefix: str = ""
    ) -> dict[str, _Part]:
        """The sections without mistakes, by their names."""
        sound = {}
        for name, table in tables.items():
            keys = mapping(table, prefix + name)
            try:
                sound[name] = kind.model_validate(keys)
            except ValidationError as error:
                problems.extend(chain(*mistakes(error, kind, keys, f"{prefix}{name}.").values()))
        return sound

    def tables(
        word: str, of_one: type[_Part], of_several: type[_Mixed]
    ) -> tuple[dict[str, object], dict[str, _Part], dict[str, _Mixed]]:
        """Below nodes or edges: plain data by type, tables of one type, tables of several."""
        raw_tables = keys.get(word)
        if isinstance(raw_tables, list):
            mixed: dict[str, object] = {f"{word}[{at}]": one for at, one in enumerate(raw_tables)}
            return {}, {}, parts(of_several, mixed)
        by_name = mapping(raw_tables, word)
        if isinstance(by_name.get("files"), str | list):
            return {}, {}, parts(of_several, {word: by_name})
        return by_name, parts(of_one, by_name, f"{word}."), {}

    keys = mapping(raw, "the schema")
    for key in keys.keys() - {"nodes", "edges", "reverse"}:
        hint = did_you_mean(key, ("nodes", "edges", "reverse"))
        wrong(key, keys[key], "nodes, edges or reverse", hint)
    reverse = keys.get("reverse", False)
    if not isinstance(reverse, bool):
        wrong("reverse", reverse, "true or false")

    raw_nodes, nodes, mixed_nodes = tables("nodes", NodeTable, MixedNodeTable)
    types = {
        name: node_spec(name, f"{key}.types.{name}", columns, config)
        for key, mixed in mixed_nodes.items()
        for name, columns in parts(NodeColumns, mixed.types, f"{key}.types.").items()
    }
    raw_edges, named_edges, mixed_edges = tables("edges", EdgeTable, MixedEdgeTable)
    edges: dict[str, EdgeSpec] = {}
    for name in raw_edges:
        ends = tuple(part.strip() for part in name.replace(",", "/").split("/"))
        if len(ends) != 3 or not all(ends):
            expects = "an edge type source/relation/target, such as author/writes/paper"
            wrong(f"edges.{name}", None, expects)
        elif name in named_edges:
            place, edge_type = f"edges.{'/'.join(ends)}", (ends[0], ends[1], ends[2])
            edges[place] = EdgeSpec(place, edge_type=edge_type, **dict(named_edges[name]))
    edges |= {key: EdgeSpec(key, **dict(table)) for key, table in mixed_edges.items()}

    spec = GraphSpec(
        nodes={
            name: node_spec(name, f"nodes.{name}", t, config, files=t.files or (), id=t.id)
            for name, t in nodes.items()
        },
        mixed_nodes=tuple(
            NodeSpec(key, t.files, id=t.id, type=t.type, types=types)
            for key, t in mixed_nodes.items()
        ),
        edges=tuple(edges.values()),
        reverse=reverse is True,
        plain=keys,
    )

    # Types that are not there, and tables that nothing refers to.
    foreign = [
        (f"{part.place}.foreign_keys.{column}", other)
        for part in (*spec.nodes.values(), *types.values())
        for column, other in part.foreign_keys.items()
    ]
    if not (problems or nodes or mixed_nodes):
        wrong("nodes", None, "a table of each node type")
    if not (problems or spec.edges or foreign):
        wrong("edges", None, "a table of edges, or foreign_keys in one of nodes")
    for name in raw_nodes:
        if any(sign in name for sign in "/,") or not name.isprintable() or not name:
            wrong(f"nodes.{name}", None, "a name without slash and comma")
    if mixed_nodes:  # the types are known when the tables are read
        return spec, problems
    at_ends = [
        (place, name)
        for place, one in edges.items()
        for name in dict.fromkeys((one.edge_type or ())[::2])
    ]
    for key, name in (*at_ends, *foreign):
        if name not in raw_nodes:
            hint = did_you_mean(name, raw_nodes) or f"write `{name}: {{}}` below nodes"
            wrong(key, name, "a node type below nodes", hint)
    in_use = {name for _, name in (*at_ends, *foreign)}
    unused = [name for name, t in nodes.items() if t.files is None and name not in in_use]
    for name in () if problems or mixed_edges else unused:
        wrong(f"nodes.{name}", None, "files, or an edge type that has its ids")
    return spec, problems
