"""Pages of `mgg report` taken apart, and files of the runs that they show."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from xml.etree import ElementTree

EPOCHS = 9  # of the fixture `trained`
LARGEST = 3_000_000  # bytes of a page
OUTSIDE = {"script", "link", "iframe", "object", "embed", "img", "base", "form", "foreignobject"}
LINKS = {"src", "href", "xlink:href", "data", "action", "poster"}


class Page:
    """A page parsed as XML, after checking that it is small, runs nothing and refers to nothing outside of it.

    tables: rows of cells. drawn: texts in figures.
    """

    def __init__(self, text: str) -> None:
        assert len(text.encode()) < LARGEST
        assert not re.search(r"https?:|//[a-z]|@import|javascript:|data:", text)
        root = ElementTree.fromstring(re.sub("<!DOCTYPE html>|<meta [^>]*>", "", text))
        self.tags = {each.tag.lower() for each in root.iter()}
        attributes = [pair for each in root.iter() for pair in each.items()]
        assert not self.tags & OUTSIDE and not [name for name, _ in attributes if name.startswith("on")]
        ids = [value for name, value in attributes if name == "id"]
        references = [value for name, value in attributes if name in LINKS]
        references += [each for _, value in attributes for each in re.findall(r"url\(([^)]*)\)", value)]
        assert references and {*references} <= {f"#{each}" for each in ids} and len({*ids}) == len(ids)
        self.said = "".join(root.itertext())
        self.labels = [each.get("aria-label") for each in root.iter("svg")]
        self.drawn = {"".join(each.itertext()) for each in root.iter("text")}
        self.tables = [
            [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
            for table in root.iter("table")
        ]

    def table(self, heading: str) -> list[dict[str, str]]:
        """The rows of the first table with this heading."""
        head, *rows = next(each for each in self.tables if heading in each[0])
        return [dict(zip(head, row, strict=True)) for row in rows]

    def facts(self, run: str) -> dict[str, str]:
        """The first table's column of a run."""
        return {row[""]: row[run] for row in self.table(run)}


def checked(path: Path) -> Page:
    return Page(path.read_text())


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def change(run: Path, **values: object) -> None:
    """Change values of a run's summary."""
    (run / "summary.json").write_text(json.dumps(summary_of(run) | values))


def lines_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def event(cat: str, name: str, ts: float, dur: float, **more: object) -> dict:
    """An event of a trace; times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur} | more


def write_trace(path: Path, *events: dict) -> None:
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


def write_profile(run: Path, ranks: object, traced: dict[int, list[dict]]) -> None:
    """Write a profile of so many ranks, with a trace of epoch 4, which takes 1 ms, for each rank in ``traced``."""
    (run / "profile").mkdir()
    kept = {"format": "mgg-profile", "version": 1, "ranks": ranks, "exchanges": []}
    (run / "profile" / "summary.json").write_text(json.dumps(kept))
    for rank, events in traced.items():
        epoch = event("user_annotation", "epoch 4", 0, 1000)
        write_trace(run / "profile" / f"rank-{rank}.json.gz", epoch, *events)


def write_tuning(run: Path, rows: str = "layer 1", knob: str = "ps", source: str = "measured") -> None:
    setting = {"ps": 16, "dist": -1, "wpb": 2}
    step = {"knob": knob, "setting": setting, "seconds": 0.01, "epoch": 1}
    row = {"rows": rows, "source": source, "steps": [step], "chosen": setting, "gain": 0.5}
    (run / "tuning.json").write_text(json.dumps({"format": "mgg-tuning", "version": 1, "rows": [row]}))
