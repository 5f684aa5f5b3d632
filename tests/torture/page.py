"""Write the table of docs/reliability.md from what `make torture` has counted.

python tests/torture/page.py build/tests/torture.jsonl
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from mgg_hpc.tools.bench import machine

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN = "make\ntest-long` do the same with fewer trials.\n\n"
FIXED = ("name", "count", "failures", "seconds", "ended")


def main(words: list[str]) -> int:
    records = [json.loads(line) for line in Path(words[0]).read_text().splitlines()]
    text = PAGE.read_text()
    before, begin, _ = text.partition(BEGIN)
    if not begin:
        raise SystemExit(f"{PAGE}: lacks the line before the table")
    PAGE.write_text(before + begin + table(records, machine.describe(), datetime.date.today()))
    return int(any(record["failures"] for record in records))


def table(records: list[dict[str, Any]], about: dict[str, Any], day: datetime.date) -> str:
    """Return the results as Markdown. A trial that failed has ended its test, so its record is missing."""
    lines = [
        f"`make torture`, {day.isoformat()}, {about['cores']} cores of an {about['cpu']}, "
        f"{about['memory_gib']:.0f} GiB, Linux {about['kernel'].partition('-')[0]}, torch {about['torch']}.",
        "",
        "| what | trials | failed | s | found |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        seconds = f"{record['seconds']:.0f}" if "seconds" in record else ""
        found = "; ".join(said(name, value) for name, value in record.items() if name not in FIXED)
        lines.append(
            f"| {record['name']} | {record['count']:,} | {record['failures']} | {seconds} | {found} |"
        )
    return "\n".join(lines) + "\n"


def said(name: str, value: Any) -> str:
    """Return a figure as words: "epochs lost: most 3, mean 1.2"."""
    if isinstance(value, dict):
        value = ", ".join(f"{key} {each}" for key, each in value.items())
    return f"{name.replace('_', ' ')}: {value}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
