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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnntrain.data.graph import EdgeData, EdgeType, GraphData, NodeData, NodeType, index_dtype
from gnntrain.data.pyg_data import PyGBuilder

ENTITY: NodeType = "entity"

_COLUMNS = {"aifb": ("person", "label_affiliation"), "mutag": ("bond", "label_mutagenic")}
"""Columns of the nodes and of their classes in the tables."""

_NUM_FOLDS = 5

_URI = r"<[^<>\"{}|^`\\\x00-\x20]*>"
_BLANK = r"_:[^\s<>\"]+"
_LITERAL = rf'"(?:[^"\\]|\\.)*"(?:\^\^{_URI}|@[A-Za-z0-9-]+)?'
_TRIPLE = re.compile(
    rf"({_URI}|{_BLANK})\s*({_URI})\s*({_URI}|{_BLANK}|{_LITERAL})\s*\.\s*(?:#.*)?"
)
_LONGEST_ID = 200


class EntitiesBuilder(PyGBuilder):
    """Builds a data set of `PUBLISHED` that PyG's class `Entities` has."""

    def read(self, raw_dir: Path) -> GraphData:
        # A set of triples by RDF's definition: one that is given twice counts once.
        triples = dict.fromkeys(read_triples(raw_dir / f"{self.dataset}_stripped.nt.gz"))
        terms = sorted({term for subject, _, target in triples for term in (subject, target)})
        number = {term: node for node, term in enumerate(terms)}
        # Of a long literal (an abstract), the beginning and a digest.
        digests = {t: hashlib.sha256(t.encode()).hexdigest() for t in terms if len(t) > _LONGEST_ID}
        ids = [f"{t[:_LONGEST_ID]}… {digests[t][:12]}" if t in digests else t for t in terms]

        # Relations are called by the local names of their URIs, the most frequent first; the
        # second of the same name is NAME_2, and so on.
        ends: dict[str, list[tuple[int, int]]] = {}
        for subject, predicate, target in triples:
            ends.setdefault(predicate, []).append((number[subject], number[target]))
        edges: dict[EdgeType, EdgeData] = {}
        count: Counter[str] = Counter()
        for uri in sorted(ends, key=lambda uri: (-len(ends[uri]), uri)):
            local = re.split(r"[#/]", uri.rstrip("#/"))[-1]
            count[local] += 1
            name = local if count[local] == 1 else f"{local}_{count[local]}"
            pairs = np.array(ends[uri], index_dtype(len(terms)))
            edges[ENTITY, name, ENTITY] = EdgeData(pairs[:, 0], pairs[:, 1])

        # Each table has a row for each labelled entity.
        node_column, class_column = _COLUMNS[self.dataset]
        names, members = dict[int, str](), []
        for table in ("trainingSet.tsv", "testSet.tsv"):
            with (raw_dir / table).open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file, delimiter="\t"))
            found = {number[row[node_column]]: row[class_column] for row in rows}
            members.append(np.array(list(found), np.int64))
            names |= found
        classes, classes_of_nodes = np.unique([*names.values()], return_inverse=True)
        labels = np.full(len(terms), -1, np.int32)
        labels[[*names]] = classes_of_nodes

        # Split 0 is the published one, without validation nodes; splits 1 to 5 hold out a fifth
        # of each class.
        train, test = members
        by_class = train[np.argsort(labels[train], kind="stable")]
        is_val = np.arange(len(train)) % _NUM_FOLDS == self.split - 1
        train, val = np.sort(by_class[~is_val]), np.sort(by_class[is_val])
        return GraphData(
            dataset=self.dataset,
            nodes={ENTITY: NodeData(len(terms), ids=np.array([term.encode() for term in ids]))},
            edges=edges,
            target=ENTITY,
            labels=labels,
            num_classes=len(classes),
            class_names=np.char.encode(classes, "utf-8"),
            task="multiclass",
            splits={"train": train, "val": val, "test": test},
            reverse=True,
        )


def read_triples(path: Path) -> Iterator[tuple[str, str, str]]:
    """The triples of a gzipped file of N-Triples (W3C, 2014); ValueError where a line is none.

    URIs come without their brackets; literals keep quotation marks, type and language, so that no
    literal equals a URI.
    """
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for row, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            match = _TRIPLE.fullmatch(line)
            if match is None:
                raise ValueError(f"line {row} of {path.name} is no triple: {line[:80]}")
            subject, predicate, target = (
                term[1:-1] if term.startswith("<") else term for term in match.groups()
            )
            yield subject, predicate, target
