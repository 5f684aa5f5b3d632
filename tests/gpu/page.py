"""Keeps what `make gpu-test` and `make gpu-bench` found, and writes docs/gpu-results.md from all that is kept.

    python tests/gpu/page.py                           the page anew
    python tests/gpu/page.py build/gpu/results         keep these results first

Results are pytest's XML, of which the newest of each test counts, and documents of benchmarks that were measured to
their end. They are kept as benchmarks/results/gpu/DATETTIME-DEVICE. Those of the shim are refused: it is no GPU.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

from devices import NOT_RUN

from mgg_hpc.errors import InputError

ROOT = Path(__file__).parents[2]
KEPT, PAGE = ROOT / "benchmarks" / "results" / "gpu", ROOT / "docs" / "gpu-results.md"
HEAD = """# Results on GPUs

Written by `python tests/gpu/page.py` from what `make gpu-test` and `make gpu-bench` found; nothing here is
an estimate. [How to run them, and how to read this](gpu-acceptance.md); [what was tried](gpu-tuning.md).
"""
OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}
Read = tuple[str, bool | None]  # a figure, and whether it reaches what it should


class Found:
    """What is in a folder of results. Raises InputError for a file that is none.

    tests: (outcome, why) of each, by name; outcome: "passed", "failed", "skipped" or "not run". properties: of all
    tests, as pairs. documents: of benchmarks, by name. date: the newest.
    """

    def __init__(self, folder: Path) -> None:
        self.tests: dict[str, tuple[str, str]] = {}
        self.properties: list[tuple[str, str]] = []
        self.documents: dict[str, Any] = {}
        dated = []
        for path in sorted([*folder.glob("*.json"), *folder.glob("*.xml")]):
            try:
                if path.suffix == ".xml":
                    suite = ElementTree.parse(path).find("testsuite")
                    dated.append((suite.attrib["timestamp"], str(path), suite))
                elif not path.stem.endswith(".partial"):
                    document = json.loads(path.read_text())
                    dated.append((document["date"], str(path), ()))
                    self.documents[path.stem] = document | {"rows": list(document["rows"])}
            except (OSError, LookupError, ValueError, TypeError, AttributeError, SyntaxError) as error:
                raise InputError(f"{path}: not a result of gpu-test or gpu-bench ({error})") from error
        for _, _, suite in sorted(dated, key=lambda each: each[:2]):
            for case in (each for each in suite if each.tag == "testcase"):
                self._add(case)
        self.date = max(dated, default=("",))[0]

    def _add(self, case: ElementTree.Element) -> None:
        name, result = f"{case.get('classname')}::{case.get('name')}", ("passed", "")
        for each in case.iter():
            if each.tag in OUTCOMES:
                why = each.get("message", "").partition("\n")[0]
                result = "not run" if NOT_RUN in why else OUTCOMES[each.tag], why
            elif each.tag == "property":
                self.properties.append((each.attrib["name"], each.attrib["value"]))
        if result[0] != "not run" or name not in self.tests:  # what was found before is more
            self.tests[name] = result

    def gpu(self) -> str:
        """The GPU's name. Raises InputError where there is none, there are several, or the shim stood in for it."""
        names = {value for name, value in self.properties if name in ("gpu", "device")} - {"cuda"}
        names |= {each["machine"].get("gpu", each.get("gpu")) for each in self.documents.values()} - {None}
        if "shim" in names or not names:
            raise InputError("results of the shim, or none: the page is for those of a GPU")
        if len(names) > 1:
            raise InputError(f"results of several GPUs: {', '.join(sorted(names))}")
        return names.pop()

    def rows(self, name: str, variant: str = "") -> list[dict[str, Any]]:
        """Return the rows of a benchmark, of one variant. Raises LookupError where there is none."""
        document = self.documents.get(name) or self.documents[f"{name}-one"]
        return [row for row in document["rows"] if variant in ("", row["variant"])]

    def cells(self, name: str, variant: str, column: str) -> dict[tuple[Any, ...], float]:
        """Return a column of a benchmark, by graph, dtype and width."""
        return {(r["graph"], r["dtype"], r["width"]): r[column] for r in self.rows(name, variant)}

    def passing(self, part: str, *, without: str = "\0") -> Read:
        """Return how many tests pass in whose names ``part`` is. Raises ValueError where there are none."""
        counts = Counter(o for name, (o, _) in self.tests.items() if part in name and without not in name)
        least = min(counts, key=("failed", "not run", "skipped", "passed").index)
        said = f"{counts['passed']:,} of {counts.total():,} pass, {counts['not run']} did not run"
        return said, {"failed": False, "not run": None}.get(least, True)

    def at_most(self, begin: str, most: float) -> Read:
        """Return the largest of the properties whose names begin so. Raises ValueError where there are none."""
        worst = max(float(value) for name, value in self.properties if name.startswith(begin))
        return f"worst {worst:.1e}", worst <= most and self.passing("test_training")[1]


def extreme(pick: Callable[..., Any], cells: dict[tuple[Any, ...], float]) -> tuple[str, float]:
    """Return the least or the most of some cells: what is said of it, and the number."""
    at = pick(cells, key=cells.__getitem__)
    return f"{cells[at]:.2f} ({', '.join(map(str, at))})", cells[at]


def _floor(found: Found) -> Read:
    said, worst = extreme(max, found.cells("aggregate", "mgg", "relative_time"))
    return f"worst {said}", worst <= 1.2


def _cusparse(found: Found) -> Read:
    times = found.cells("aggregate", "cusparse", "mgg_speedup")
    mean = math.exp(sum(map(math.log, times.values())) / max(1, len(times)))
    return f"{mean:.2f}, least {extreme(min, times)[0]}", mean >= 1.5 or _floor(found)[1]


def _half(found: Found) -> Read:
    ms = {at: each for at, each in found.cells("half-rows", "mgg", "median_ms").items() if at[2] >= 64}
    halves = {at: ms[at[0], "float32", at[2]] / each for at, each in ms.items() if at[1] == "bfloat16"}
    said, least = extreme(min, halves)
    return f"least {said}", least >= 1.6


def _hidden(found: Found) -> Read:
    """Of the share of remote rows at which transfer and sums come nearest to each other."""
    ms = {(row["remote_share"], row["variant"]): row["median_ms"] for row in found.rows("overlap")}
    hidden = {row["remote_share"]: each for row in found.rows("overlap") if (each := row.get("hidden_share"))}
    parts = "halo's exchange alone", "sums alone"
    best = min(hidden, key=lambda at: abs(math.log(ms[at, parts[0]] / ms[at, parts[1]])))
    return f"{hidden[best]:.2f}, at a share of {best:.3g}", hidden[best] >= 0.9


def _epoch(found: Found) -> Read:
    times = {(row["graph"], row["variant"]): row["relative_time"] for row in found.rows("epoch")}
    said, least = extreme(min, {at: each for at, each in times.items() if at[1] != "mgg"} or {("mgg",): 0.0})
    ours = ", ".join(f"{row['graph']}: {row['median_ms']:.2f} ms" for row in found.rows("epoch", "mgg"))
    return f"{ours}; least {said}", least >= 2


def _start(found: Found) -> Read:
    (row,) = found.rows("start", "all beyond reading")
    return f"{row['median_ms'] / 1e3:.1f} s", row["median_ms"] < 30e3


def _bandwidth(found: Found) -> Read:
    rows, copies = found.rows("traversal", "host"), found.documents["traversal"]["copy_gb_per_s"]
    said, least = extreme(min, {(row["graph"],): row["gb_per_s"] / copies for row in rows})
    return f"least {said}; copies {copies:.1f} GB/s", least >= 0.93


def _gathers(found: Found) -> Read:
    """Of rows that are lines, and of rows that are not, by all multiprocessors; and with a tenth of them."""
    whole, tenth = (
        {row["row_bytes"]: row["of_copy"] for row in found.rows("gather", name)}
        for name in ("gather by the whole GPU", "gather")
    )
    said = ", ".join(f"{whole[size]:.2f} ({tenth[size]:.2f})" for size in (1024, 1028))
    reached = whole[1024] >= 0.95 and whole[1028] >= 0.9
    return said, reached and all(tenth[size] >= 0.9 * whole[size] for size in (1024, 1028))


TRAINING, SANITIZERS = "make gpu-test TESTS=tests/gpu/test_ranks.py", "test_sanitizers"
START = "from start to the end of the first epoch, beyond reading the file"
GATHERS = "bandwidth of gathers from the host's memory over that of copies, rows of 1,024 and of 1,028 bytes (bounded)"
SEARCHES = "bandwidth of searches, edges in the host's memory, over that of copies"
# What, what it should reach, the command or the part of gpu-bench that measures it, and what reads it: a LookupError or
# a ValueError says that it was not measured.
FIGURES: list[tuple[str, str, str, Callable[[Found], Read]]] = [
    (
        "cases on the GPU, one process and several",
        "all pass",
        "make gpu-test",
        lambda found: found.passing("", without=SANITIZERS),
    ),
    (
        "sanitizers; planted faults",
        "0 reports; 4 of 4 reported",
        "make gpu-test",
        lambda found: found.passing(SANITIZERS),
    ),
    ("our time relative to the gather floor", "1.2 in every cell", "aggregate", _floor),
    ("times as fast as cuSPARSE CSR_ALG2, float32", "1.5, or the floor", "aggregate", _cusparse),
    ("bfloat16 rows over float32, widths of 64 and more", "1.6", "half-rows", _half),
    ("hidden share where transfer and sums take as long", "0.9", "overlap", _hidden),
    ("a GCN's epoch, and times as fast as PyG's", "2", "epoch", _epoch),
    (
        "losses of 30 epochs against the CPU's, float32",
        "1e-4 relative",
        TRAINING,
        lambda found: found.at_most("deviation of losses, float32", 1e-4),
    ),
    (
        "calls within a training step that wait for the GPU",
        "none",
        TRAINING,
        lambda found: found.at_most("waits of the host", 0),
    ),
    (START, "30 s", "start", _start),
    (SEARCHES, "0.93", "traversal", _bandwidth),
    (GATHERS, "0.95, 0.9 (0.9 of these)", "gather", _gathers),
]


def table(found: Found | None) -> list[str]:
    """Return lines of Markdown: each figure, what to reach, what was reached and whether it does, and the command."""
    lines = ["| what | to reach | reached | command |", "|---|---|---|---|"]
    for what, reach, by, read in FIGURES:
        said, reached = "not measured" if found else "not yet", None
        with contextlib.suppress(LookupError, ValueError):
            said, reached = read(found) if found else (said, None)
        verdict = {None: "", True: ": yes", False: ": **no**"}[reached]
        command = by if by.startswith("make") else f"make gpu-bench PARTS={by}"
        lines.append(f"| {what} | {reach} | {said}{verdict} | `{command}` |")
    return [*lines, ""]


def text(kept: Path, page: Path) -> str:
    """The whole page, the newest run first."""
    runs, lines = sorted((path for path in kept.glob("*") if path.is_dir()), reverse=True), [HEAD]
    if not runs:
        lines += ["None yet: no GPU was at hand.", "", *table(None)]
    for folder in runs:
        found, where = Found(folder), Path("..") / folder.relative_to(page.parent.parent)
        lines += [f"## {found.gpu()}, {found.date[:10]}", "", *table(found)]
        lines += [f"- {name}: {said}: {why}" for name, (said, why) in found.tests.items() if said != "passed"]
        files = [path.name for kind in ("md", "svg") for path in sorted(folder.glob(f"*.{kind}"))]
        lines += ["", f"All figures: {', '.join(f'[{name}]({where / name})' for name in files)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def main(words: list[str], kept: Path = KEPT, page: Path = PAGE) -> int:
    """See above."""
    try:
        for results in map(Path, words[:1]):
            found = Found(results)
            name = re.sub(r"[^a-z0-9]+", "-", found.gpu().lower()).strip("-")
            folder = kept / f"{found.date[:16].replace(':', '')}-{name}"
            shutil.rmtree(folder, ignore_errors=True)  # the same results again
            shutil.copytree(results, folder, ignore=shutil.ignore_patterns("*.log", "*.partial.*"))
            print(f"kept in {folder}")
        page.write_text(text(kept, page))
    except InputError as error:
        print(f"gpu-results: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
