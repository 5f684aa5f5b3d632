"""Keeps what `make gpu-test` and `make gpu-bench` found, and writes docs/gpu-results.md from all that is kept.

    python tests/gpu/page.py                           the page anew
    python tests/gpu/page.py build/gpu/results         keep these results first

Results are pytest's XML, of which the newest of each test counts, and documents of benchmarks that were measured to
their end. They are kept as benchmarks/results/gpu/DATETTIME-DEVICE. Those of the shim are refused: it is no GPU.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

from devices import NOT_RUN

from mgg_hpc.errors import InputError

ROOT = Path(__file__).parents[2]
KEPT, PAGE = ROOT / "benchmarks" / "results" / "gpu", ROOT / "docs" / "gpu-results.md"
SANITIZERS = "test_sanitizers"
Read = tuple[str, bool | None]  # a figure, and whether it reaches what it should


@dataclass
class Test:
    """The newest result of a test. outcome: "passed", "failed", "skipped" or "not run"."""

    name: str
    outcome: str
    why: str
    properties: dict[str, str]


@dataclass
class Found:
    """What is in a folder of results. documents: of benchmarks, by name; dates: of all files."""

    tests: dict[str, Test] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    dates: list[str] = field(default_factory=list)

    def named(self, *words: str) -> list[Test]:
        """Tests in whose names one of the words is. Raises LookupError where there are none."""
        return some(test for name, test in self.tests.items() if any(word in name for word in words))

    def properties(self, begin: str) -> list[float]:
        """Values of properties whose names begin so. Raises LookupError where there are none."""
        of_all = (test.properties.items() for test in self.tests.values())
        return some(float(value) for each in of_all for name, value in each if name.startswith(begin))

    def device(self) -> dict[str, Any]:
        """The GPU. Raises InputError where there is none, there are several, or the shim stood in for it."""
        machines = [
            json.loads(t.properties["machine"]) for t in self.tests.values() if "machine" in t.properties
        ]
        gpus = {document["machine"].get("gpu", document.get("gpu")) for document in self.documents.values()}
        names = {machine["name"] for machine in machines} | {name for name in gpus if name}
        if "shim" in names | {test.properties.get("device") for test in self.tests.values()} or not names:
            raise InputError("results of the shim, or none: the page is for those of a GPU")
        if len(names) > 1:
            raise InputError(f"results of several GPUs: {', '.join(sorted(names))}")
        return machines[0] if machines else {"name": names.pop()}


def read(folder: Path) -> Found:
    """The results in a folder. Raises InputError for a file that is none."""
    found = Found()
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text())
            if not isinstance(document["rows"], list):
                raise ValueError("it has no rows")
            found.dates.append(document["date"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a result of gpu-bench ({error})") from error
        if not path.stem.endswith(".partial"):
            found.documents[path.stem] = document
    suites = []
    for path in sorted(folder.glob("*.xml")):
        try:
            suite = ElementTree.parse(path).find("testsuite")
            suites.append((suite.attrib["timestamp"], suite))
        except (OSError, ElementTree.ParseError, AttributeError, KeyError) as error:
            raise InputError(f"{path}: not a result of gpu-test ({error})") from error
    for date, suite in sorted(suites, key=lambda each: each[0]):
        found.dates.append(date)
        for case in suite.iter("testcase"):
            test = test_of(case)
            if test.outcome != "not run" or test.name not in found.tests:  # what was found before is more
                found.tests[test.name] = test
    return found


def test_of(case: ElementTree.Element) -> Test:
    """Return one test of an XML."""
    outcome, why = "passed", ""
    for kind, meaning in (("skipped", "skipped"), ("error", "failed"), ("failure", "failed")):
        if (element := case.find(kind)) is not None:
            outcome, why = meaning, element.get("message", "").partition("\n")[0]
    if NOT_RUN in why:
        outcome = "not run"
    properties = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
    return Test(f"{case.get('classname')}::{case.get('name')}", outcome, why, properties)


@dataclass(frozen=True)
class Figure:
    """A figure to reach. of: reads it from a run's results; raises LookupError where it was not measured."""

    what: str
    reach: str
    command: str
    of: Callable[[Found], Read]

    def cells(self, found: Found) -> tuple[str, ...]:
        """Return its row in the table."""
        try:
            said, reached = self.of(found)
        except LookupError:
            said, reached = "not measured", None
        verdict = "" if reached is None else "yes" if reached else "**no**"
        return self.what, self.reach, said, verdict, f"`{self.command}`"


FIGURES: list[Figure] = []


def figure(what: str, reach: str, command: str) -> Callable[[Callable[[Found], Read]], Any]:
    """Add the figure that the decorated function reads."""

    def add(of: Callable[[Found], Read]) -> Callable[[Found], Read]:
        FIGURES.append(Figure(what, reach, command, of))
        return of

    return add


def some(values: Iterable[Any]) -> list[Any]:
    """Return a list of the values. Raises LookupError where there are none."""
    if found := list(values):
        return found
    raise LookupError("nothing was measured")


def passing(tests: list[Test]) -> Read:
    """Return how many tests pass, and which did not."""
    said = [f"{sum(test.outcome == 'passed' for test in tests):,} of {len(tests):,} pass"]
    for outcome in ("failed", "skipped", "not run"):
        names = [test.name.rpartition(".")[2] for test in tests if test.outcome == outcome]
        said += (
            [f"{len(names)} {outcome}: {', '.join(names[:3])}{', ...' * (len(names) > 3)}"] if names else []
        )
    outcomes = {test.outcome for test in tests}
    return "; ".join(said), False if "failed" in outcomes else None if "not run" in outcomes else True


@figure("cases on the GPU, one process and several", "all pass", "make gpu-test")
def _cases(found: Found) -> Read:
    return passing(some(test for name, test in found.tests.items() if SANITIZERS not in name))


@figure("sanitizers; planted faults", "0 reports; 4 of 4 reported", "make gpu-test")
def _sanitizers(found: Found) -> Read:
    return passing(found.named(SANITIZERS))


def _rows(found: Found, name: str, variant: str = "") -> list[dict[str, Any]]:
    """Return the rows of a benchmark, of one variant. Raises LookupError where there are none."""
    return some(row for row in found.documents[name]["rows"] if variant in ("", row["variant"]))


def _case(row: dict[str, Any]) -> str:
    return f"{row['graph']}, {row['dtype']} x {row['width']}"


def _aggregate(found: Found, variant: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of `aggregate`, or of the part of it that a first contact measures, and which that is."""
    name = "aggregate" if "aggregate" in found.documents else "aggregate-one"
    return _rows(found, name, variant), "" if name == "aggregate" else f"; {name} only"


@figure("our time relative to the gather floor", "1.2 in every cell", "make gpu-bench PARTS=aggregate")
def _floor(found: Found) -> Read:
    rows, which = _aggregate(found, "mgg")
    worst = max(rows, key=lambda row: row["times_first"])
    mean = statistics.geometric_mean(row["times_first"] for row in rows)
    said = f"worst {worst['times_first']:.2f} ({_case(worst)}), geometric mean {mean:.2f}{which}"
    return said, worst["times_first"] <= 1.2


@figure("times as fast as cuSPARSE CSR_ALG2, float32", "1.5, or the floor", "make gpu-bench PARTS=aggregate")
def _cusparse(found: Found) -> Read:
    rows, which = _aggregate(found, "cusparse")
    least = min(rows, key=lambda row: row["mgg_speedup"])
    mean = statistics.geometric_mean(row["mgg_speedup"] for row in rows)
    said = f"{mean:.2f}, least {least['mgg_speedup']:.2f} ({_case(least)}){which}"
    return said, mean >= 1.5 or _floor(found)[1]


@figure("bfloat16 rows over float32, widths of 64 and more", "1.6", "make gpu-bench PARTS=half-rows")
def _half(found: Found) -> Read:
    rows = [row for row in _rows(found, "half-rows", "mgg") if row["width"] >= 64]
    whole = {(row["graph"], row["width"]): row["median_ms"] for row in rows if row["dtype"] == "float32"}
    halves = some(row for row in rows if row["dtype"] == "bfloat16")
    times = {_case(row): whole[row["graph"], row["width"]] / row["median_ms"] for row in halves}
    least = min(times, key=times.__getitem__)
    return f"least {times[least]:.2f} ({least})", times[least] >= 1.6


HALO = "halo: each remote row once, sums meanwhile (ours)"


@figure("hidden share where transfer and sums take as long", "0.9", "make gpu-bench PARTS=overlap")
def _hidden(found: Found) -> Read:
    ms = {(row["remote_share"], row["variant"]): row["median_ms"] for row in _rows(found, "overlap")}
    rows = some(row for row in _rows(found, "overlap", HALO) if row.get("hidden_share") is not None)
    sums, exchange = "sums alone, all rows on the GPU", "halo's exchange alone"
    ratio = {
        row["remote_share"]: ms[row["remote_share"], exchange] / ms[row["remote_share"], sums] for row in rows
    }
    best = min(rows, key=lambda row: abs(math.log(ratio[row["remote_share"]])))
    where = f"at a share of {best['remote_share']:.3g} (transfer over sums {ratio[best['remote_share']]:.2f})"
    return f"{best['hidden_share']:.2f}, {where}", best["hidden_share"] >= 0.9


@figure("a GCN's epoch, and times as fast as PyG's", "2", "make gpu-bench PARTS=epoch")
def _epoch(found: Found) -> Read:
    ours, said, least = _rows(found, "epoch", "mgg"), [], []
    for row in ours:
        others = [each for each in _rows(found, "epoch") if each["graph"] == row["graph"] and each is not row]
        times = {each["variant"]: each["times_first"] for each in others}
        baselines = [f"{each:.2f} times {name}" for name, each in times.items()]
        said.append(", ".join([f"{row['graph']}: {row['median_ms']:.2f} ms", *baselines]))
        least.append(min(times.values(), default=0.0))
    return "; ".join(said), min(least) >= 2


TRAINING = "make gpu-test TESTS=tests/gpu/test_ranks.py"


@figure("losses of 30 epochs against the CPU's, float32", "1e-4 relative", TRAINING)
def _losses(found: Found) -> Read:
    worst = max(found.properties("deviation of losses, float32"))
    return f"worst {worst:.1e}", worst <= 1e-4 and passing(found.named("test_training"))[1]


@figure("calls within a training step that wait for the GPU", "none", TRAINING)
def _waits(found: Found) -> Read:
    most = max(found.properties("waits of the host"))
    return f"{most:.0f}", most == 0


@figure(
    "from start to the end of the first epoch, beyond reading the file", "30 s", "make gpu-bench PARTS=start"
)
def _start(found: Found) -> Read:
    (row,) = _rows(found, "start", "all beyond reading")
    return f"{row['median_ms'] / 1e3:.1f} s ({found.documents['start']['edges']:,} edges)", row[
        "median_ms"
    ] < 30e3


TRAVERSAL = "make gpu-bench PARTS=traversal"


def _searches(found: Found, variant: str) -> dict[str, dict[str, Any]]:
    """Return the row of a way to read edges, by graph."""
    return {row["graph"]: row for row in _rows(found, "traversal", variant)}


@figure("bandwidth of searches, edges in the host's memory, over that of copies", "0.93", TRAVERSAL)
def _bandwidth(found: Found) -> Read:
    rows = some(_searches(found, "host, 8 bytes").values())
    copies = found.documents["traversal"]["copy_gb_per_s"]
    shares = {row["graph"]: row["gb_per_s"] / copies for row in rows}
    said = ", ".join(f"{graph} {share:.2f}" for graph, share in shares.items())
    return f"{said}; copies {copies:.1f} GB/s", min(shares.values()) >= 0.93


def keep(results: Path, kept: Path) -> Path:
    """Copy a run's results, each kind into a folder, and return the run's folder. Raises InputError."""
    found = read(results)
    name = re.sub(r"[^a-z0-9]+", "-", found.device()["name"].lower()).strip("-")
    folder = kept / f"{max(found.dates)[:16].replace(':', '')}-{name}"
    shutil.rmtree(folder, ignore_errors=True)  # the same results again
    for kind, endings in ((".", "json xml"), ("tables", "md"), ("pictures", "svg")):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for path in (path for ending in endings.split() for path in sorted(results.glob(f"*.{ending}"))):
            shutil.copy(path, folder / kind)
    return folder


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)]


def section(folder: Path, page: Path) -> list[str]:
    """One run on the page."""
    found = read(folder)
    device = found.device()
    lines = [f"## {device['name']}, {max(found.dates)[:10]}", ""]
    if "driver" in device:
        driver, runtime = (
            f"{device[key] // 1000}.{device[key] % 1000 // 10}" for key in ("driver", "runtime")
        )
        size = f"{device['multiprocessors']} multiprocessors, {device['memory_bytes'] / 2**30:.0f} GiB"
        lines += [
            f"{size}, driver for CUDA {driver} ({device.get('driver_version')}), runtime {runtime}.",
            "",
        ]
    lines += table(("what", "to reach", "reached", "", "command"), [each.cells(found) for each in FIGURES])
    wrong = [test for test in found.tests.values() if test.outcome != "passed"]
    if wrong:
        lines += ["", "Tests that did not pass:", ""]
        lines += table(("test", "", "why"), [(test.name, test.outcome, test.why) for test in wrong])
    where = Path("..") / folder.relative_to(page.parent.parent)
    tables = [f"[{path.stem}]({where / 'tables' / path.name})" for path in sorted(folder.glob("tables/*.md"))]
    lines += ["", f"All figures: {', '.join(tables)}."] if tables else []
    for path in sorted(folder.glob("pictures/*.svg")):
        lines += ["", f"![{path.stem}]({where / 'pictures' / path.name})"]
    return [*lines, ""]


def text(kept: Path, page: Path) -> str:
    """The whole page, the newest run first."""
    lines = [
        "# Results on GPUs",
        "",
        "Written by `python tests/gpu/page.py` from what `make gpu-test` and `make gpu-bench` found; nothing here is",
        "an estimate. [How to run them, and how to read this](gpu-acceptance.md); [what was tried](gpu-tuning.md).",
        "",
    ]
    runs = sorted((path for path in kept.glob("*") if path.is_dir()), reverse=True) if kept.is_dir() else []
    if not runs:
        lines += ["None yet: no GPU was at hand.", ""]
        rows = [(each.what, each.reach, "not yet", f"`{each.command}`") for each in FIGURES]
        lines += table(("what", "to reach", "reached", "command"), rows)
    for run in runs:
        lines += section(run, page)
    return "\n".join(lines).rstrip() + "\n"


def main(words: list[str], kept: Path = KEPT, page: Path = PAGE) -> int:
    """See above."""
    if len(words) > 1 or words[:1] in (["-h"], ["--help"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if words:
            print(f"kept in {keep(Path(words[0]), kept)}")
        written = text(kept, page)
    except InputError as error:
        print(f"gpu-results: {error}", file=sys.stderr)
        return 2
    page.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
