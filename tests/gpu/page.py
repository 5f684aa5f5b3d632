"""Keeps what `make gpu-test` and `make gpu-bench` found, and writes docs/gpu-results.md from all that is kept.

    python tests/gpu/page.py                           the page anew
    python tests/gpu/page.py build/gpu/results         keep these results first, with pictures where there is matplotlib

Results are kept as benchmarks/results/gpu/DATETTIME-DEVICE. Those of the shim are refused: it is no GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

from gpu.parts import BENCHES, CONTACT_BENCH, TOOLS
from mgg_hpc.errors import InputError

ROOT = Path(__file__).parents[2]
KEPT, PAGE = ROOT / "benchmarks" / "results" / "gpu", ROOT / "docs" / "gpu-results.md"
PICTURES = ("aggregate", "half-rows", "overlap", "epoch")

KINDS = ("contact", "test", "bench")  # commands, whose documents say how parts ended
# The documents of one run, by the names of their parts and of the commands.
Found = dict[str, Any]


Read = tuple[
    str, bool | None
]  # a figure, and whether it reaches what it should; None where it does not count


@dataclass(frozen=True)
class Figure:
    """A figure to reach. of: reads it from a run's documents; raises LookupError where it was not measured."""

    what: str
    reach: str
    command: str
    of: Callable[[Found], Read]

    def read(self, found: Found) -> Read | None:
        """Return the figure, or None where it was not measured."""
        try:
            return self.of(found)
        except LookupError:
            return None

    def cells(self, found: Found) -> tuple[str, ...]:
        """Return its row in the table. What is not of today's sources, or not whole, is shown and does not count."""
        doubts, whole = doubtful(found), self.read(found)
        read = self.read(without(found, *doubts))
        if read is None and whole is not None:
            why = {doubt for name, doubt in doubts.items() if self.read(without(found, name)) != whole}
            read = "; ".join([whole[0], *sorted(why)]), None
        said, reached = ("not measured", None) if read is None else read
        verdict = "" if reached is None else "yes" if reached else "**no**"
        return self.what, self.reach, said, verdict, f"`{self.command}`"


def without(found: Found, *names: str) -> Found:
    """Return the other documents of a run."""
    return {name: document for name, document in found.items() if name not in names}


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


OTHER = "of other sources"


def _other(part: dict[str, Any]) -> bool:
    """Return whether a part ran with other sources than those of the last call."""
    return bool(part.get("of_other_sources"))


def _listed(found: Found) -> list[dict[str, Any]]:
    """Return what all commands say of their parts, the newest last."""
    parts = [part for kind in KINDS if kind in found for part in found[kind]["parts"]]
    return sorted(parts, key=lambda part: (str(part["date"]), _other(part)))


def _ends(found: Found) -> dict[str, Any]:
    """Return how the parts that were run ended, by their names: of each the newest ending, whichever command ran it."""
    return {part["part"]: part for part in _listed(found) if part["verdict"] != "not run"}


def doubtful(found: Found) -> dict[str, str]:
    """Return the parts whose documents do not count, with the reason."""
    ends = _ends(found)
    doubts = {part["part"]: "not whole" for part in _listed(found) if part["part"] not in ends}
    for name, part in ends.items():
        if _other(part):
            doubts[name] = OTHER
        elif part["verdict"] == "failed" and name in (*BENCHES, CONTACT_BENCH):
            doubts[name] = "not whole"
    return doubts


@figure("cases on the GPU, one process and several", "all pass", "make gpu-test")
def _cases(found: Found) -> Read:
    others = (*TOOLS, "planted", *BENCHES, CONTACT_BENCH)
    every = some(part for name, part in _ends(found).items() if name not in others)
    parts = [part for part in every if not _other(part)]
    cases, passed = (sum(part[key] for part in parts) for key in ("cases", "passed"))
    said = [f"{passed:,} of {cases:,} pass"]
    for what, names in (
        ("not", [part["part"] for part in parts if part["verdict"] != "passed"]),
        (OTHER, [part["part"] for part in every if _other(part)]),
    ):
        said += [f"{what}: {', '.join(names)}"] if names else []
    if any(part["verdict"] == "failed" for part in parts):
        return "; ".join(said), False
    return "; ".join(said), True if len(parts) == len(every) else None


@figure("sanitizers; planted faults", "0 reports; 4 of 4 reported", "make gpu-test")
def _sanitizers(found: Found) -> Read:
    every = _ends(found)
    parts = {name: part for name, part in every.items() if not _other(part)}
    if not any(name in parts for name in TOOLS):
        ran = some(name for name in TOOLS if name in every)
        return f"{', '.join(ran)} {OTHER}", None
    ran = [name for name in TOOLS if name in parts]
    wrong = [f"{name}: {parts[name]['why']}" for name in ran if parts[name]["verdict"] != "passed"]
    planted = parts.get("planted", {"passed": 0, "cases": len(TOOLS)})
    said = "; ".join(wrong) or f"0 reports of {', '.join(ran)}"
    reached = not wrong and len(ran) == planted["passed"] == len(TOOLS)
    return f"{said}; planted {planted['passed']} of {planted['cases']}", reached


def _aggregate(found: Found) -> tuple[dict[str, Any], str]:
    """Return the summary of `aggregate`, or of the part of it that a first contact measures, and which that is."""
    name = "aggregate" if "aggregate" in found else CONTACT_BENCH
    return found[name]["summary"], "" if name == "aggregate" else f"; {name} only"


def _cell(cell: dict[str, Any]) -> str:
    return f"{cell['times']:.2f} ({cell['graph']}, {cell['dtype']} x {cell['width']})"


@figure("our time relative to the gather floor", "1.2 in every cell", "make gpu-bench PARTS=aggregate")
def _floor(found: Found) -> Read:
    summary, which = _aggregate(found)
    of = summary["over_floor"]
    return f"worst {_cell(of['worst'])}, geometric mean {of['mean']:.2f}{which}", of["worst"]["times"] <= 1.2


@figure("times as fast as cuSPARSE CSR_ALG2, float32", "1.5, or the floor", "make gpu-bench PARTS=aggregate")
def _cusparse(found: Found) -> Read:
    summary, which = _aggregate(found)
    of = summary["speedup"]["cusparse"]
    return f"{of['mean']:.2f}, least {_cell(of['worst'])}{which}", of["mean"] >= 1.5 or _floor(found)[1]


@figure("bfloat16 rows over float32, widths of 64 and more", "1.6", "make gpu-bench PARTS=half-rows")
def _half(found: Found) -> Read:
    halves = found["half-rows"]["summary"]["half"]
    cells = some(cell for cell in halves if cell["dtype"] == "bfloat16" and cell["width"] >= 64)
    least = min(cells, key=lambda cell: cell["times"])
    return f"least {_cell(least)}", least["times"] >= 1.6


@figure("hidden share where transfer and sums take as long", "0.9", "make gpu-bench PARTS=overlap")
def _hidden(found: Found) -> Read:
    of = found["overlap"]["balance"]["halo"]
    where = f"at a share of {of['share']:.3g} (transfer over sums {of['ratio']:.2f})"
    return f"{of['hidden']:.2f}, {where}", of["hidden"] >= 0.9


@figure("pipelines over direct where nothing is remote", "1.05", "make gpu-bench PARTS=overlap")
def _near(found: Found) -> Read:
    times = some(case["over_direct"] for case in found["overlap"]["cases"] if case["share"] == 0)[0]
    return ", ".join(f"{name} {each:.2f}" for name, each in times.items()), max(some(times.values())) <= 1.05


@figure("a GCN's epoch, and times as fast as PyG's", "2", "make gpu-bench PARTS=epoch")
def _epoch(found: Found) -> Read:
    said, least = [], []
    for case in some(found["epoch"]["cases"]):
        times = {name: of["median"] for name, of in case["speedup"].items()}
        baselines = [f"{each:.2f} times {name}" for name, each in times.items()]
        said.append(", ".join([f"{case['graph']}: {case['ms']['mgg']['median']:.2f} ms", *baselines]))
        least.append(min(times.values(), default=0.0))
    return "; ".join(said), min(least) >= 2


def _lines(found: Found, operation: str) -> list[dict[str, Any]]:
    """Return the lines of all parts that train."""
    parts = [document for name, document in found.items() if name.startswith("training-")]
    return [line for part in parts for line in part["lines"] if line["operation"].startswith(operation)]


TRAINING = 'make gpu-test PARTS="training-1 training-2"'


@figure("losses of 30 epochs against the CPU's, float32", "1e-4 relative", TRAINING)
def _losses(found: Found) -> Read:
    lines = some(line for line in _lines(found, "losses") if line["dtype"] == "float32")
    deviations = (part.get("deviation", {}) for part in found.values())
    worst = max(some(each["float32"] for each in deviations if "float32" in each))
    return f"worst {worst:.1e}", all(line["passed"] == line["cases"] for line in lines)


@figure("calls within a training step that wait for the GPU", "none", "make gpu-test PARTS=training-1")
def _waits(found: Found) -> Read:
    said = [failure for line in some(_lines(found, "waits")) for failure in line["failures"]]
    return "; ".join(said) or "none", not said


START = "from start to the end of the first epoch, beyond reading the file"


@figure(START, "30 s", "make gpu-bench PARTS=start")
def _start(found: Found) -> Read:
    samples = sorted(found["start"]["samples_ms"]["all beyond reading"])
    seconds = samples[len(samples) // 2] / 1e3
    return f"{seconds:.1f} s ({found['start']['edges']:,} edges)", seconds < 30


LAYER = "a layer over 111 million rows and 1.6 billion edges"


@figure(LAYER, "runs, beside its floor", "make gpu-bench PARTS=huge")
def _huge(found: Found) -> Read:
    cases = {case["name"]: case for case in found["huge"]["cases"]}
    said = some(
        f"{name} {cases[name]['ms']['median']:.1f} ms, {cases[name]['of_copy']:.2f} of the copy bandwidth"
        for name in ("sums", "both")
        if name in cases
    )
    return "; ".join(said), True


TRAVERSAL = "make gpu-bench PARTS=traversal"


def _searches(found: Found, variant: str) -> dict[str, dict[str, Any]]:
    """Return the row of a way to read edges, by graph."""
    return {row["graph"]: row for row in found["traversal"]["rows"] if row["variant"] == variant}


@figure("bandwidth of searches, edges in the host's memory, over that of copies", "0.93", TRAVERSAL)
def _bandwidth(found: Found) -> Read:
    rows = some(_searches(found, "host, 8 bytes").values())
    shares = {row["graph"]: row["gb_per_s"] / row["copy_gb_per_s"] for row in rows}
    said = ", ".join(f"{graph} {share:.2f}" for graph, share in shares.items())
    return f"{said}; copies {rows[0]['copy_gb_per_s']:.1f} GB/s", min(shares.values()) >= 0.93


@figure("searches of edges in the host's memory against managed memory", "2.6 in the mean", TRAVERSAL)
def _managed(found: Found) -> Read:
    ours, theirs = (_searches(found, f"{place}, 8 bytes") for place in ("host", "managed"))
    times = some(theirs[graph]["median_ms"] / row["median_ms"] for graph, row in ours.items())
    mean = statistics.geometric_mean(times)
    return f"{mean:.2f}, of {len(times)} graphs", mean >= 2.6


def read(folder: Path) -> Found:
    """The documents of a run. Raises InputError for a file that is none."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text())
            if not str(document["format"]).startswith("mgg-"):
                raise ValueError(f"its format is {document['format']!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a result of gpu-test or gpu-bench ({error})") from error
        found[path.stem] = document
    return found


def device_of(found: Found) -> dict[str, Any]:
    """The GPU that a run was on. Raises InputError where there is none, or the shim stood in for it."""
    devices = [document.get("device") or document.get("machine") or {} for document in found.values()]
    names = {device.get("name", "nothing") for device in devices}
    if not names or "shim" in names:
        raise InputError("results of the shim, or none: the page is for those of a GPU")
    if len(names) > 1:
        raise InputError(f"results of several GPUs: {', '.join(sorted(names))}")
    return devices[0]


def keep(results: Path, kept: Path) -> Path:
    """Copy a run's documents, its tables, and draw its pictures, each kind into a folder. Return the run's folder.

    Raises InputError.
    """
    found = read(results)
    name = re.sub(r"[^a-z0-9]+", "-", device_of(found)["name"].lower()).strip("-")
    newest = max(document["date"] for document in found.values())
    folder = kept / f"{newest[:16].replace(':', '')}-{name}"
    shutil.rmtree(folder, ignore_errors=True)  # the same results again
    for kind in ("tables", "pictures"):
        (folder / kind).mkdir(parents=True)
    for path in sorted(results.glob("*.json")):
        shutil.copy(path, folder)
    for path in sorted(results.glob("*.md")):
        shutil.copy(path, folder / "tables")
    for part in PICTURES:
        if part in found:
            _draw(folder / f"{part}.json", folder / "pictures" / f"{part}.svg")
    return folder


def _draw(document: Path, picture: Path) -> None:
    from mgg_hpc.tools.bench.pictures import draw_again

    try:
        draw_again(document, picture)
    except InputError as error:  # no matplotlib: the next time that the page is written where there is one
        print(f"gpu-results: {picture.name} is not drawn: {error}", file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)]


def section(folder: Path, page: Path) -> list[str]:
    """One run on the page."""
    found = read(folder)
    device = device_of(found)
    dates = sorted(document["date"] for document in found.values())
    driver, runtime = (f"{device[key] // 1000}.{device[key] % 1000 // 10}" for key in ("driver", "runtime"))
    lines = [f"## {device['name']}, {dates[-1][:10]}", ""]
    size = f"{device['multiprocessors']} multiprocessors, {device['memory_bytes'] / 2**30:.0f} GiB"
    lines += [f"{size}, driver for CUDA {driver}, runtime {runtime}.", ""]
    lines += table(("what", "to reach", "reached", "", "command"), [each.cells(found) for each in FIGURES])
    for kind in KINDS:
        if kind not in found:
            continue
        ends = []
        for part in found[kind]["parts"]:
            cases = f"{part['passed']:,} / {part['cases']:,}" if part["cases"] else ""
            verdict = f"{part['verdict']}{f', {OTHER}' * _other(part)}"
            ends.append((part["part"], verdict, cases, f"{part['seconds']:.0f}", part["why"]))
        lines += ["", f"`make gpu-{kind}`, {found[kind]['date'][:10]}:", ""]
        lines += table(("part", "verdict", "cases", "s", "why"), ends)
    where = Path("..") / folder.relative_to(page.parent.parent)
    tables = [f"[{path.stem}]({where / 'tables' / path.name})" for path in sorted(folder.glob("tables/*.md"))]
    if tables:
        lines += ["", f"All figures: {', '.join(tables)}."]
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
