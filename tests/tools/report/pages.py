"""Pages of `mgg report` taken apart, and files of the runs that they show."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

EPOCHS = 9  # of the run in conftest.py
LARGEST = 3_000_000  # bytes of a page
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page taken apart: tables as lists of rows of cells, and everything that could reach outside of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.paths: list[tuple[str, str]] = []
        self.labels: list[str] = []
        self.drawn: set[str] = set()  # texts in figures
        self.wrong: list[str] = []
        self._open: list[str] = []
        self._cell = False
        self.said = ""
        self.feed(text)
        self.close()
        assert not self._open and not self.wrong

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags[tag] += 1
        self.wrong += [name for name in found if name.startswith("on")]
        self.references += [
            value
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data", "action", "poster")
        ]
        self.references += [each for _, value in attrs for each in re.findall(r"url\(([^)]*)\)", value or "")]
        self.labels += [found["aria-label"]] if "aria-label" in found else []
        self.ids += [found["id"]] if "id" in found else []
        if tag == "path" and "id" not in found:
            self.paths.append((found["d"], found.get("style", "")))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data):
        self.said += data
        if self._open and self._open[-1] == "text":
            self.drawn.add(data)
        if self._cell:
            self.tables[-1][-1][-1] += data

    def table(self, heading: str) -> list[dict[str, str]]:
        """The rows of the first table with this heading."""
        rows = next(rows for rows in self.tables if heading in rows[0])
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]

    def facts(self, run: str) -> dict[str, str]:
        """The first table's column of a run."""
        return {row[""]: row[run] for row in self.table(run)}


def checked(path: Path) -> Page:
    """Take a page apart, after checking that it stands alone."""
    text = path.read_text()
    assert len(text.encode()) < LARGEST
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|javascript:|data:", text)
    assert not set(page.tags) & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "img",
        "base",
        "form",
        "foreignobject",
    }
    assert page.references and all(each.startswith("#") for each in page.references)
    assert {each[1:] for each in page.references} <= set(page.ids) and len(set(page.ids)) == len(page.ids)
    return page


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def lines_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def profile_of(run: Path) -> dict:
    return json.loads((run / "profile" / "summary.json").read_text())


def write_profile(run: Path, ranks: object, traced: dict[int, list[dict]]) -> None:
    """Write a profile of so many ranks, with a trace of epoch 4, which takes 1 ms, for each rank in ``traced``."""
    (run / "profile").mkdir()
    kept = {"format": "mgg-profile", "version": 1, "ranks": ranks, "exchanges": []}
    (run / "profile" / "summary.json").write_text(json.dumps(kept))
    for rank, events in traced.items():
        epoch = {"ph": "X", "cat": "user_annotation", "name": "epoch 4", "ts": 0, "dur": 1000}
        content = json.dumps({"traceEvents": [epoch, *events]}).encode()
        (run / "profile" / f"rank-{rank}.json.gz").write_bytes(gzip.compress(content))


def curves_of(page: Page, points: int) -> list[np.ndarray]:
    """The heights of all curves with so many points, downwards."""
    found = []
    for path, style in page.paths:
        places = np.array([each.split() for each in re.findall(r"[ML] ([-\d.]+ [-\d.]+)", path)], float)
        if len(places) == points and "fill: none" in style and np.all(np.diff(places[:, 0]) > 0):
            found.append(places[:, 1])
    return found
