"""RDF graphs whose entities are to be classified (Ristoski et al., 2016): AIFB and MUTAG.

As in R-GCN's paper (Schlichtkrull et al., 2018), all subjects and objects are nodes of one type,
literals among them, and each predicate is an edge type. PyG's class `Entities` names and fetches
the raw files. They are read here because PyG needs rdflib for them, which nothing else here does.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gnntrain.data.graph import (
    AnyArray,
    EdgeData,
    EdgeType,
    HeteroGraphData,
    Int64Array,
    NodeData,
    NodeType,
    index_dtype,
)
from gnntrain.data.pyg_data import PyGBuilder

ENTITY: NodeType = "entity"

_COLUMNS = {"aifb": ("person", "label_affiliation"), "mutag": ("bond", "label_mutagenic")}
"""Columns of the nodes and of their classes in the tables."""

NUM_FOLDS = 5

_URI = r"<[^<>\"{}|^`\\\x00-\x20]*>"
_BLANK = r"_:[^\s<>\"]+"
_LITERAL = rf'"(?:[^"\\]|\\.)*"(?:\^\^{_URI}|@[A-Za-z0-9-]+)?'
_TRIPLE = re.compile(
    rf"({_URI}|{_BLANK})\s*({_URI})\s*({_URI}|{_BLANK}|{_LITERAL})\s*\.\s*(?:#.*)?"
)
_LONGEST_ID = 200

Triple = tuple[str, str, str]
"""Subject, predicate and object."""


class EntitiesBuilder(PyGBuilder):
    """Builds a data set of `PUBLISHED` that PyG's class `Entities` has."""

    def read(self, raw_dir: Path) -> HeteroGraphData:
        # A set of triples by RDF's definition: one that is given twice counts once.
        triples = dict.fromkeys(read_triples(raw_dir / f"{self.dataset}_stripped.nt.gz"))
        terms = sorted({term for subject, _, target in triples for term in (subject, target)})
        number = {term: node for node, term in enumerate(terms)}
        tables = [
            _read_classes(raw_dir / f"{name}Set.tsv", *_COLUMNS[self.dataset])
            for name in ("training", "test")
        ]
        classes = sorted({label for table in tables for label in table.values()})
        labels = np.full(len(terms), -1, np.int32)
        for uri, label in (entry for table in tables for entry in table.items()):
            labels[number[uri]] = classes.index(label)
        train, test = (np.array([number[uri] for uri in table], np.int64) for table in tables)
        train, val = hold_out(train, labels[train], self.split)
        return HeteroGraphData(
            dataset=self.dataset,
            nodes={ENTITY: NodeData(len(terms), ids=np.array([_id(term) for term in terms]))},
            edges=_edges(triples, number),
            target=ENTITY,
            labels=labels,
            num_classes=len(classes),
            class_names=np.array([label.encode() for label in classes]),
            task="multiclass",
            splits={"train": train, "val": val, "test": test},
            reverse=True,
        )


def read_triples(path: Path) -> Iterator[Triple]:
    """The triples of a gzipped file of N-Triples (W3C, 2014).

    URIs come without their brackets; literals keep quotation marks, type and language, so that no
    literal equals a URI. Two literals are equal if their text is.

    Raises:
        ValueError: A line is not a triple.
    """
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for row, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            found = _TRIPLE.fullmatch(line)
            if found is None:
                raise ValueError(f"line {row} of {path.name} is no triple: {line[:80]}")
            subject, predicate, target = map(_without_brackets, found.groups())
            yield subject, predicate, target


def _without_brackets(term: str) -> str:
    return term[1:-1] if term.startswith("<") else term


def _read_classes(path: Path, node_column: str, class_column: str) -> Mapping[str, str]:
    """The class of each node of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {row[node_column]: row[class_column] for row in rows}


def _edges(triples: Mapping[Triple, None], number: Mapping[str, int]) -> dict[EdgeType, EdgeData]:
    """The edges of each relation, the most frequent first; the subject is the source."""
    ends: dict[str, list[tuple[int, int]]] = {}
    for subject, predicate, target in triples:
        ends.setdefault(predicate, []).append((number[subject], number[target]))
    predicates = sorted(ends, key=lambda uri: (-len(ends[uri]), uri))
    dtype = index_dtype(len(number))
    return {
        (ENTITY, name, ENTITY): EdgeData(pairs[:, 0], pairs[:, 1])
        for name, uri in zip(relation_names(predicates), predicates, strict=True)
        for pairs in [np.array(ends[uri], dtype)]
    }


def relation_names(predicates: Sequence[str]) -> list[str]:
    """The local names of URIs; of the second with the same name `NAME_2`, and so on."""
    seen: Counter[str] = Counter()
    names = []
    for uri in predicates:
        local = re.split(r"[#/]", uri.rstrip("#/"))[-1]
        seen[local] += 1
        names.append(local if seen[local] == 1 else f"{local}_{seen[local]}")
    return names


def _id(term: str) -> bytes:
    """The term itself; of a long literal (an abstract) its beginning and a digest."""
    if len(term) <= _LONGEST_ID:
        return term.encode()
    return f"{term[:_LONGEST_ID]}… {hashlib.sha256(term.encode()).hexdigest()[:12]}".encode()


def hold_out(nodes: Int64Array, labels: AnyArray, fold: int) -> tuple[Int64Array, Int64Array]:
    """Training and validation nodes of a fold: a fifth of each class is for validation.

    Args:
        nodes: Nodes to divide, `[n]`.
        labels: Their classes.
        fold: 1 to 5, which fifth; 0: none.
    """
    by_class = nodes[np.argsort(labels, kind="stable")]
    is_val = np.arange(len(nodes)) % NUM_FOLDS == fold - 1
    return np.sort(by_class[~is_val]), np.sort(by_class[is_val])
