"""Pages: their structure, their escaping, and that they load nothing."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.report.findings import Findings, Projection
from gnntrain.report.page import Page, page_of, to_html
from gnntrain.report.runs import read_run
from tests.report.samples import records_of, write_run

HOSTILE = '</script></svg><img src=x onerror=alert(1)> & "\'$co_st$ `a|b` id="x"'
_VOID = {"meta", "link"}


class Structure(HTMLParser):
    """The elements of a page; fails on one that is closed in the wrong place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def titles(self, tag: str) -> list[str]:
        return [text for element, text in self.texts if element == tag]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def make(*values: float, name: str = "run", error: str = "", typed: str = "") -> Page:
        ending = {"error": error} if error else {}
        path = write_run(tmp_path / name, records_of(*values), ending, [typed] if typed else [])
        run = read_run(path)
        return page_of([run], run, Findings(notes=["No graph."]))

    return make


def test_a_page_of_a_run_has_these_parts(make: Any) -> None:
    page = Structure(to_html(make(0.5, 0.75, typed="trainer.lr=0.1")))
    assert page.titles("h1") == ["run"]
    assert page.titles("h2") == ["Training", "Time and memory", "Configuration", "Environment"]
    cards = ["Accuracy", "Loss", "Metrics of epoch 2", "A typical epoch", "Time of each epoch"]
    assert page.titles("h3")[:7] == [*cards, "Throughput", "Memory"]
    assert page.titles("a") == page.titles("h2")
    assert [tag for tag, _ in page.elements].count("svg") == 5
    assert ("dd", "0.3750") in page.texts
    assert {("p", "No graph."), ("span", "completed")} <= {*page.texts}
    typed = [attributes for tag, attributes in page.elements if attributes.get("class") == "typed"]
    assert len(typed) == 1
    best = make(float("nan"), name="unjudged")["keys"][1]
    assert best == ("best epoch", "1", "of 1 trained, the last: none has a val accuracy")


def test_embeddings_need_no_label_on_val_and_test(tmp_path: Path) -> None:
    places = np.arange(8.0).reshape(4, 2)
    classes, predicted = np.array([0, 1, 0, 1]), np.array([0, 1, 1, 1])
    texts = [f"node {i} (train)" for i in range(4)]
    projection = Projection(places, texts, "outputs", 4, classes, predicted)
    run = read_run(write_run(tmp_path / "run", records_of(0.5), {}))
    page = to_html(page_of([run], run, Findings(names=["cat", "dog"], projection=projection)))
    titles = Structure(page).titles("h2")
    assert "Embeddings" in titles
    assert "Classes" not in titles
    assert "node 2 (train)\\nclass cat\\npredicted dog" in page


def pages_with_hostile_names(tmp_path: Path) -> list[Page]:
    name = HOSTILE.replace("/", "_")
    paths = [
        write_run(tmp_path / name, records_of(0.5, 0.6), {"error": HOSTILE}, [f"a={HOSTILE}"]),
        write_run(tmp_path / "other", records_of(0.5), {}, label_smoothing=0.1),
    ]
    runs = [read_run(path) for path in paths]
    config = {**runs[0].config, "dataset.name": HOSTILE, "model.name": HOSTILE, HOSTILE: HOSTILE}
    runs[0] = dataclasses.replace(runs[0], config=config, metric="accuracy")
    outcome = Findings(notes=[HOSTILE])
    return [page_of(some, runs[0], outcome) for some in (runs[:1], runs)]


def test_names_of_the_user_stay_text(tmp_path: Path) -> None:
    for page in pages_with_hostile_names(tmp_path):
        text = to_html(page)
        found = Structure(text)
        assert "img" not in {tag for tag, _ in found.elements}
        assert text.count("</script>") == text.count("<script")
        assert "onerror=alert(1)&gt;" in text


def test_a_page_loads_nothing_and_runs_one_script(tmp_path: Path, make: Any) -> None:
    for page in [make(0.5, 0.6), *pages_with_hostile_names(tmp_path)]:
        found = Structure(to_html(page))
        for tag, attributes in found.elements:
            for name in ("src", "href", "xlink:href"):
                assert (attributes.get(name) or "#").startswith(("#", "data:,")), tag
        (policy,) = [a["content"] or "" for _, a in found.elements if "http-equiv" in a]
        assert "default-src 'none'" in policy
        assert policy.count("sha256-") == 1
        assert "'unsafe-inline'" not in policy.split("style-src")[0]


def test_ids_are_unique_and_every_reference_has_one(tmp_path: Path, make: Any) -> None:
    for page in [make(0.5, 0.6, 0.7), *pages_with_hostile_names(tmp_path)]:
        text = to_html(page)
        ids = [a["id"] for _, a in Structure(text).elements if "id" in a]
        assert len(ids) == len({*ids})
        assert {*re.findall(r"url\(#([^)]*)\)", text)} <= {*ids}
        assert {*re.findall(r'<(?:a|use) [^<>]*href="#([^"]*)"', text)} <= {*ids}
