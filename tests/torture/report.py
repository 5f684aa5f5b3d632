"""Counts of long tests: printed, and gathered in a file where MGG_TORTURE_REPORT names one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

REPORT = "MGG_TORTURE_REPORT"


def record(name: str, count: int, failures: int, **more: Any) -> None:
    """Print what a test has counted, and append it as a line of JSON to the report.

    more: further facts, such as ``seconds``. The line is written in one call, so that processes can share the file.
    """
    facts = {"name": name, "count": count, "failures": failures, **more}
    print(f"{name}: {', '.join(f'{value} {key}' for key, value in facts.items() if key != 'name')}")
    path = os.environ.get(REPORT)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**facts, "ended": round(time.time())}) + "\n")
