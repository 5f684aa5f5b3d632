"""`mgg bench draw`: the picture of a document that a benchmark wrote earlier."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import InputError
from .aggregate import plot as aggregate
from .epoch import plot as epoch
from .overlap import plot as overlap
from .sweep import plot as sweep

# How to draw the document of each benchmark.
PICTURES = {
    "aggregate": aggregate.draw,
    "epoch": epoch.draw,
    "device-overlap": overlap.draw,
    "sweep": sweep.draw,
}


def draw_again(document: Path, picture: Path) -> None:
    """Draw the picture of a benchmark's JSON. Raises InputError for a file that is none, or that has no picture."""
    try:
        found = json.loads(document.read_text())
        known = found["format"] == "mgg-bench" and found["benchmark"] in PICTURES
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{document}: not what a benchmark wrote with --json ({error})") from error
    if not known:
        raise InputError(
            f"{document}: there is no picture of {found.get('benchmark')!r} of {found['format']!r}"
        )
    if not picture.absolute().parent.is_dir():
        raise InputError(f"{picture}: there is no folder {picture.parent}")
    PICTURES[found["benchmark"]](found, picture)
