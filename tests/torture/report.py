"""Counts of long tests, printed and gathered in a file, and the table of docs/reliability.md that `make torture` makes.

PYTHONPATH=benchmarks python tests/torture/report.py build/tests/torture.md
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPORT = "MGG_TORTURE_REPORT"  # variable that names the file
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN = "make\ntest-long` do the same with fewer trials.\n\n"


def record(name: str, count: int, failures: int, *, seconds: float | None = None, **found: Any) -> None:
    """Print what a test has counted, and append it as a row of the table to the report.

    The row is written in one call, so that processes can share the file.
    """
    facts = "; ".join(f"{key.replace('_', ' ')}: {said(value)}" for key, value in found.items())
    took = "" if seconds is None else f"{seconds:.0f}"
    row = f"| {name} | {count:,} | {failures} | {took} | {facts} |\n"
    print(row, end="")
    if os.environ.get(REPORT):
        with Path(os.environ[REPORT]).open("a", encoding="utf-8") as file:
            file.write(row)


def said(value: Any) -> str:
    return (
        ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
    )


@contextlib.contextmanager
def recorded(name: str, count: int) -> Iterator[dict[str, Any]]:
    """Record trials that all pass, with their seconds and the facts that are added to the dictionary."""
    began, more = time.monotonic(), {}
    yield more
    record(name, count, 0, seconds=time.monotonic() - began, **more)


def main(path: str) -> None:
    from harness import results

    about = results.machine()
    head = (
        f"`make torture`, {datetime.date.today().isoformat()}, {about['cores']} cores of an {about['cpu']}, "
    )
    head += f"{about['memory_gib']:.0f} GiB, Linux {about['kernel'].partition('-')[0]}, torch {about['torch']}.\n\n"
    before, begin, _ = PAGE.read_text().partition(BEGIN)
    assert begin, f"{PAGE}: lacks the line before the table"
    table = "| what | trials | failed | s | found |\n|---|---|---|---|---|\n" + Path(path).read_text()
    PAGE.write_text(before + begin + head + table)


if __name__ == "__main__":
    main(sys.argv[1])
