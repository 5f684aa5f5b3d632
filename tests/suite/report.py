"""A pytest plugin: ``--report FILE`` writes what happens, for run.py to show and to sum up.

Each line of the file is a JSON object: {"total": tests} once they are collected, then for each test {"test": name,
"outcome": "passed", "failed" or "skipped", "seconds": of its call, set-up and tear-down, "why": reason of a skip}.
Only the first process of a run writes: the controller of pytest-xdist, rank 0 of MPI.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def pytest_addoption(parser):
    parser.addoption(
        "--report", type=Path, metavar="FILE", help="write the outcome of each test as JSON lines"
    )


def pytest_configure(config):
    path = config.getoption("--report")
    if path is not None and not hasattr(config, "workerinput") and _first_rank(config):
        config.pluginmanager.register(Report(path), "mgg-report")


def _first_rank(config) -> bool:
    if not config.getoption("--with-mpi", default=False):
        return True
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_rank() == 0


class Report:
    """Writes the lines, each as soon as it is known."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self._seconds: dict[str, float] = defaultdict(float)
        self._outcome: dict[str, dict[str, Any]] = {}

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def pytest_collection_finish(self, session):
        if session.items:
            self._write({"total": len(session.items)})

    def pytest_xdist_node_collection_finished(self, node, ids):
        if ids:
            self._write({"total": len(ids)})

    def pytest_collectreport(self, report):
        if report.failed:
            self._write({"test": report.nodeid, "outcome": "failed", "seconds": 0.0, "why": "collection"})

    def pytest_runtest_logreport(self, report):
        name = report.nodeid
        if report.when not in ("setup", "call", "teardown"):  # a process of pytest-xdist has ended
            self._write({"test": name, "outcome": "failed", "why": "its process ended", "seconds": 0.0})
            return
        self._seconds[name] += report.duration
        found = self._outcome.setdefault(name, {"outcome": "passed", "why": ""})
        if report.failed:
            found["outcome"] = "failed"
        elif report.skipped and found["outcome"] == "passed":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            found |= {"outcome": "skipped", "why": reason.removeprefix("Skipped: ")}
        if report.when == "teardown":
            self._write({"test": name, **found, "seconds": round(self._seconds[name], 4)})
