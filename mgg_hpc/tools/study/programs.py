"""The study of programs on vertices and edges (NGra, section 6): a table and a picture for each part.

The parts are those of bench/programs/parts.py, to whose list further ones are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...runtime import mpi
from ..bench.harness import document
from ..bench.programs.parts import PARTS, Request, measured
from .table import Files, Row, Table


@dataclass(frozen=True)
class Written:
    """The folder of the tables and pictures, and whether there are pictures."""

    folder: Path
    pictures: bool

    def of(self, part: str) -> Files:
        """Return the files of a part."""
        return Files(self.folder / f"{part}.csv", self.folder / f"{part}.png" if self.pictures else None)

    def check(self, parts: Sequence[str]) -> None:
        """Raise InputError for files that cannot be written, before anything is measured."""
        if not self.folder.is_dir():
            raise InputError(f"--folder {self.folder}: is not a folder")
        for part in parts:
            self.of(part).check()


def run(parts: Sequence[str], request: Request, written: Written) -> int:
    """Measure parts, print and write. Raises InputError under a launcher, and where a part cannot be measured."""
    if mpi.launched():
        raise InputError("mgg study programs starts its processes itself, without a launcher")
    for name in parts:
        part = PARTS[name]
        rows, found = measured(name, request)
        document.show(document.preamble(found), [part.sheet(rows)])
        same = {"device": "cpu", "threads_per_rank": found["threads"], "turns": found["turns"]}
        table = Table("programs", same)
        table.rows += [{"study": "programs", **same, **line} for row in rows for line in part.lines(row)]
        table.save(written.of(name), partial(_drawn, name, rows, found))
    return 0


def _drawn(part: str, rows: Sequence[Row], found: Mapping[str, Any], table: Table, path: Path) -> None:
    PARTS[part].draw(rows, found, path)
