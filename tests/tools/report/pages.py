"""Pages of `mgg report` taken apart, and files of the runs that they show."""

from __future__ import annotations

import csv
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

EPOCHS = 9  # of the run in conftest.py
LARGEST = 3_000_000  # bytes of a page
OUTSIDE = {"script", "link", "iframe", "object", "embed", "img", "base", "form", "foreignobject"}


class Page(HTMLParser):
    """A page taken apart: tables as lists of rows of cells, and everything that could reach outside of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.labels: list[str] = []
        self.drawn: set[str] = set()  # texts in figures
        self.title = self.said = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
            self.references += (
                [value] if name in ("src", "href", "xlink:href", "data", "action", "poster") else []
            )
            self.ids += [value] if name == "id" else []
            self.labels += [value] if name == "aria-label" else []
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in {"meta", "br"}:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.said += data
        self.title += data * (self._open[-1:] == ["title"])
        if "text" in self._open:
            self.drawn.add(data)
        if self._open and self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def with_head(self, *heads: str) -> list[list[list[str]]]:
        """The tables whose first line has these words."""
        return [table for table in self.tables if set(heads) <= set(table[0])]

    def table(self, heading: str) -> list[dict[str, str]]:
        """The rows of the first table with this heading."""
        rows = self.with_head(heading)[0]
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
    assert not page.tags & OUTSIDE
    assert page.references and all(each.startswith("#") for each in page.references)
    assert {each[1:] for each in page.references} <= set(page.ids) and len(set(page.ids)) == len(page.ids)
    return page


def change(run: Path, **values: object) -> None:
    """Change values of a run's summary."""
    (run / "summary.json").write_text(json.dumps(summary_of(run) | values))


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def lines_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write_profile(run: Path, ranks: object, traced: dict[int, list[dict]]) -> None:
    """Write a profile of so many ranks, with a trace of epoch 4, which takes 1 ms, for each rank in ``traced``."""
    (run / "profile").mkdir()
    kept = {"format": "mgg-profile", "version": 1, "ranks": ranks, "exchanges": []}
    (run / "profile" / "summary.json").write_text(json.dumps(kept))
    for rank, events in traced.items():
        epoch = {"ph": "X", "cat": "user_annotation", "name": "epoch 4", "ts": 0, "dur": 1000}
        content = json.dumps({"traceEvents": [epoch, *events]}).encode()
        (run / "profile" / f"rank-{rank}.json.gz").write_bytes(gzip.compress(content))
