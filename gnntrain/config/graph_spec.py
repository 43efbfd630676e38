"""What a graph is read from: `GraphSpec`, its tables and columns by node type and edge type.

`spec_of_files` makes one of the keys of `dataset=files`, a graph of one node type and one edge
type; `read_schema` of the YAML file of `dataset.schema`, see docs/typed-graphs.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, create_model

from gnntrain.config.problems import Problem, did_you_mean, nearest, shown, told
from gnntrain.config.schema import FilesConfig
from gnntrain.config.section import Section, judged
from gnntrain.config.types import JSON, Missing, Names, Text, described
from gnntrain.config.yaml_files import read_yaml
from gnntrain.errors import UserError

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
Tables = Annotated[dict[str, Any], described("keys, not a value")]

# The keys of a schema's parts, with the types of their values.
_COLUMN_FILE = {"file": Text, "id": Text, "column": Names}
_SPLIT_FILES = dict.fromkeys(("train", "val", "test"), Text)
NODE_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("features", "categorical", "ignore"), Names),
    "missing": Missing,
    "standardize": bool,
    "label": Names | Annotated[dict[str, Any], described("{file: labels.csv, column: area}")],
    "split": Text | Annotated[dict[str, Any], described("{file: split.csv} or {train: ids.npy}")],
    "foreign_keys": Annotated[dict[str, Text], described("a mapping from columns to node types")],
}
"""Keys of a node type, but for those of its table."""
_NODE_TABLE = {"files": Files, "id": Text}
_MIXED_NODES = {**_NODE_TABLE, "type": Text, "types": Tables}
_EDGES = {"files": Files, "source": Text, "target": Text}
_MIXED_EDGES = {**_EDGES, **dict.fromkeys(("type", "source_type", "target_type"), Text)}


@dataclass(frozen=True)
class TableSpec:
    """A table and the keys that name it in messages."""

    place: str  # the key of its files: `features`, `nodes.author`, `nodes.author.label`
    files: tuple[str, ...] = ()  # none: of nodes, their ids come from the edges
    # By the schema's word for a key, keys that are called otherwise: `id` is `dataset.id_column`.
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
            for name in (names,) if isinstance(names, str) else names:
                is_needed = labelled or word not in ("features", "categorical", "ignore")
                if is_needed and (word, name) != ("id", NO_ID):
                    yield self.key(word), name


@dataclass(frozen=True)
class ColumnSpec(TableSpec):
    """Columns of labels or of splits: of the nodes' table, if they have no files of their own."""

    column: tuple[str, ...] | None = None  # None: recognised
    id: str | None = None  # column of the node ids in these files, see `NodeSpec`
    ignore: tuple[str, ...] = ()  # columns of these files to leave out
    # Of splits: files of each one's node ids.
    parts: Mapping[str, str] = field(default_factory=dict)

    _words = ("column", "id")


@dataclass(frozen=True)
class NodeSpec(TableSpec):
    """The nodes of one type: their table and its columns; keys as of `FilesConfig`."""

    name: str | None = None  # None: the column `type` says it
    id: str | None = None  # None: recognised by its name; `NO_ID`: there is none
    id_names: tuple[str, ...] = ()  # more names by which it is recognised
    features: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    missing: Missing = "refuse"
    standardize: bool = False
    foreign_keys: Mapping[str, str] = field(default_factory=dict)  # node types by column
    label: ColumnSpec = field(default_factory=lambda: ColumnSpec("label"))
    split: ColumnSpec = field(default_factory=lambda: ColumnSpec("split"))
    type: str | None = None
    # Of a table of several types: what single types have of their own.
    types: Mapping[str, NodeSpec] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)  # why columns are no features

    _words = ("id", "type", "foreign_keys", "features", "categorical", "ignore")

    @property
    def header(self) -> tuple[str, ...]:
        names = [name for _, name in self.asked()]
        for own in (self.label, self.split):
            names += () if own.files else own.header
        names += [name for of_type in self.types.values() for name in of_type.header]
        return (*names, *self.id_names, *(TYPE_NAMES if self.name is None else ()))


@dataclass(frozen=True)
class EdgeSpec(TableSpec):
    """Edges of one type: their table and the columns of both ends; None: recognised by name. Of
    several types (`edge_type` None), `type` is the column of the relation; the types at the ends
    have columns too, or are told by the ids."""

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
    """What a graph is read from. The keys of `dataset=files` have no `schema`: one type each."""

    nodes: Mapping[str, NodeSpec] = field(default_factory=dict)  # types with an entry of their own
    mixed: NodeSpec | None = None  # in place of them: a table with a column of node types
    edges: tuple[EdgeSpec, ...] = ()
    reverse: bool = False
    schema: Path | None = None  # the file that says this
    plain: Mapping[str, Any] = field(default_factory=dict)  # and what it says

    @property
    def node_tables(self) -> tuple[NodeSpec, ...]:
        """The tables of nodes, and types without one."""
        return (*self.nodes.values(), *([] if self.mixed is None else [self.mixed]))

    @property
    def types(self) -> Mapping[str, NodeSpec]:
        """What single types of `mixed` have of their own."""
        return {} if self.mixed is None else self.mixed.types

    def files(self, *, labelled: bool) -> dict[str, tuple[str, ...]]:
        """Names or patterns of files by their places; without labels and splits unless labelled."""
        found = {part.place: part.files for part in self.node_tables}
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
        **{word: f"dataset.{word}" for word in (*NODE_KEYS, "labels")},
        **{word: f"dataset.{word}_column" for word in words},
        "features": "dataset.feature_columns",
    }
    own: dict[str, Any] = {"id": config.id_column, "ignore": config.ignore}

    def columns(place: str, word: str, names: tuple[str, ...] | None) -> ColumnSpec:
        file = getattr(config, place)
        files = (file,) if isinstance(file, str) else ()  # a split may be a number
        own_keys = {**keys, "column": f"dataset.{word}_column"}
        return ColumnSpec(place, files, own_keys, column=names, **(own if files else {}))

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
        label=columns("labels", "label", config.label_column),
        split=columns("split", "split", None if split is None else (split,)),
        **own,
    )
    ends = (config.source_column, config.target_column, config.weight_column)
    edges = EdgeSpec("edges", (str(graph or config.edges),), keys, edge, *ends)
    return GraphSpec(nodes={node: nodes}, edges=(edges,))


def node_spec(name: str, place: str, config: FilesConfig) -> NodeSpec:
    """A node type of a schema that says no more of it: the configuration says the rest."""
    label, split = f"{place}.label", f"{place}.split"
    return NodeSpec(
        place,
        keys={"labels": label},
        name=name,
        id_names=ids_called(name),
        missing=config.missing,
        standardize=config.standardize,
        label=ColumnSpec(label, keys={"column": label}),
        split=ColumnSpec(split, keys={"column": split}),
    )


def ids_called(node_type: str) -> tuple[str, ...]:
    """Names that say that a column holds ids of a node type, in lower case."""
    name = node_type.lower()
    return f"{name}_id", f"{name}id", f"id_{name}"


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
    """What a schema's plain data say, and its mistakes; what is mistaken is left out."""
    problems: list[Problem] = []

    def wrong(key: str, value: object, expects: str, hint: str | None = None) -> None:
        problems.append(Problem(key, shown(value), expects, hint))

    def keys_of(place: str, raw: object, kinds: Mapping[str, Any], needs: str = "") -> JSON:
        """The keys of a part, each as its type has it; null leaves a key out."""
        if not isinstance(raw, Mapping | None):
            wrong(place or "the schema", raw, "keys, not a value")
            raw = {}
        raw = raw or {}
        fields: JSON = {word: (kind | None, None) for word, kind in kinds.items()}
        kind = create_model("Keys", __base__=Section, **fields)
        keys, found = judged(kind, raw, f"{place}.".lstrip("."))
        problems.extend(found)
        given = [nearest(str(word), kinds) for word, value in raw.items() if value is not None]
        if needs and needs not in given:
            wrong(f"{place}.{needs}", None, "a file")
        return {word: value for word, value in keys if value is not None}

    def columns(place: str, value: Any) -> ColumnSpec:
        """Labels or splits: in columns of the nodes' table, or in files of their own."""
        if not isinstance(value, dict):
            names = (value,) if isinstance(value, str) else value
            return ColumnSpec(place, keys={"column": place}, column=names)
        meant = {nearest(str(word), (*_COLUMN_FILE, *_SPLIT_FILES)) for word in value}
        if place.endswith(".split") and not meant & _COLUMN_FILE.keys():
            parts = keys_of(place, value, _SPLIT_FILES, "train")
            return ColumnSpec(place, keys={"column": place}, parts=parts)
        keys = keys_of(place, value, _COLUMN_FILE, "file")
        return ColumnSpec(
            place, (keys.get("file", ""),), column=keys.get("column"), id=keys.get("id")
        )

    def nodes_of(place: str, by_name: JSON, kinds: Mapping[str, Any]) -> dict[str, NodeSpec]:
        """Node types by their names."""
        found = {}
        for name, raw_keys in by_name.items():
            key = f"{place}.{name}"
            keys = keys_of(key, raw_keys, kinds)
            keys |= {w: columns(f"{key}.{w}", keys[w]) for w in ("label", "split") if w in keys}
            found[name] = replace(node_spec(name, key, config), **keys)
        return found

    keys = keys_of("", raw, {"nodes": Tables, "edges": Tables, "reverse": bool})
    nodes, mixed, edges = dict[str, NodeSpec](), None, list[EdgeSpec]()
    tables = keys.get("nodes", {})
    if isinstance(tables.get("files"), str | list):  # one table with a column of types
        of_table = keys_of("nodes", tables, _MIXED_NODES)
        types = nodes_of("nodes.types", of_table.pop("types", {}), NODE_KEYS)
        mixed = NodeSpec("nodes", **of_table, types=types)
    else:
        nodes = nodes_of("nodes", tables, {**_NODE_TABLE, **NODE_KEYS})
    tables = keys.get("edges", {})
    if isinstance(tables.get("files"), str | list):
        edges = [EdgeSpec("edges", **keys_of("edges", tables, _MIXED_EDGES))]
        tables = {}
    for name, table in tables.items():
        of_table = keys_of(f"edges.{name}", table, _EDGES, "files")
        match [part.strip() for part in name.replace(",", "/").split("/")]:
            case [str(source), str(relation), str(target)] if source and relation and target:
                edge_type = (source, relation, target)
                place = f"edges.{'/'.join(edge_type)}"
                edges.append(EdgeSpec(place, edge_type=edge_type, **of_table))
            case _:
                expects = "an edge type source/relation/target, such as author/writes/paper"
                wrong(f"edges.{name}", None, expects)
    spec = GraphSpec(
        nodes,
        mixed,
        tuple(edges),
        keys.get("reverse", False),
        plain=raw if isinstance(raw, dict) else {},
    )

    # Types that are not there, and tables that nothing refers to.
    named = [(part.place, name) for part in spec.edges for name in (part.edge_type or ())[::2]]
    foreign = [
        (f"{part.place}.foreign_keys.{column}", other)
        for part in (*nodes.values(), *spec.types.values())
        for column, other in part.foreign_keys.items()
    ]
    if not (problems or nodes or mixed):
        wrong("nodes", None, "a table of each node type")
    if not (problems or edges or foreign):
        wrong("edges", None, "a table of edges, or foreign_keys in one of nodes")
    for name in nodes:
        if any(sign in name for sign in "/,") or not name.isprintable() or not name:
            wrong(f"nodes.{name}", None, "a name without slash and comma")
    if mixed:  # the types are known when the tables are read
        return spec, problems
    for key, name in dict.fromkeys([*named, *foreign]):
        if name not in nodes:
            hint = did_you_mean(name, nodes) or f"write `{name}: {{}}` below nodes"
            wrong(key, name, "a node type below nodes", hint)
    in_use = {name for _, name in (*named, *foreign)}
    unused = [name for name, part in nodes.items() if not part.files and name not in in_use]
    for name in () if problems or any(part.edge_type is None for part in spec.edges) else unused:
        wrong(f"nodes.{name}", None, "files, or an edge type that has its ids")
    return spec, problems
