"""The proof on a GPU, part by part: what passed is not run again, and what has no time is left to the next run.

    python tests/gpu/accept.py contact --results build/gpu/results        all of `make gpu-contact`
    python tests/gpu/accept.py test --results build/gpu/results           all of `make gpu-test`
    python tests/gpu/accept.py bench --results build/gpu/results          all of `make gpu-bench`
    python tests/gpu/accept.py test --parts memcheck,racecheck --again    some parts, whatever they were
    python tests/gpu/accept.py test --device shim --shim FOLDER           the same over the host that plays a GPU

A part is a process of its own with a limit of its own. What it wrote is RESULTS/PART.json, and RESULTS/PART.log;
RESULTS/contact.json, test.json and bench.json say how all of them ended, and RESULTS.tar.gz has all of it in three
files. A part that has ended is in them whatever ends this program; what a part that was ended on its way had written
is in RESULTS/running, and from its next start in RESULTS, until it has ended. Where the sources of a part have changed,
its old result stays, marked as of other sources, until the part has run again. Exit code 0: all passed, or could not be
by what the machine lacks; 1: some failed; 2: nothing can run; 3: some were left for the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import programs
from rich.markup import escape

from gpu import archive, prepare, result
from gpu.parts import Part, parts_of
from gpu.pes.engine import Engine, describe
from mgg_hpc.errors import InputError

ROOT = Path(__file__).parents[2]
# Of all parts together, and of building before: a command on a machine that is lent may end at 600 s.
SECONDS = {"contact": 540.0, "test": 520.0, "bench": 540.0}
HANGS = 3.0  # times as long as expected: what is ended then has not been too slow, but hung
GRACE = 15.0  # seconds between asking a part to end and ending it
LEFT_OUT = 3  # a part's exit code where the machine lacks what it needs
# What was never run comes first, and what has failed last: it may hang again.
ORDER = {"not run": 0, "left out": 1, "passed": 2, "failed": 3}
MARKS = {"passed": "green", "failed": "red", "left out": "yellow", "not run": "yellow"}


@dataclass
class Ending:
    """How a part ended. verdict: "passed", "failed", "left out" (with a reason) or "not run" (no time).

    fingerprint: of the sources and the machine that it ran with. of_other_sources: they are others now.
    """

    part: str
    verdict: str
    why: str = ""
    seconds: float = 0.0
    cases: int = 0
    passed: int = 0
    date: str = ""
    fingerprint: str = ""
    of_other_sources: bool = False


def fingerprint(part: Part, about: dict[str, Any]) -> str:
    """Return a digest of all that decides how a part ends: sources, options, the GPU, its driver and libraries."""
    options = [word for word in part.words if not word.startswith("/")]
    seen = hashlib.sha256(json.dumps([about, options], sort_keys=True, default=str).encode())
    for name in part.sources:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.suffix in (".py", ".cu", ".cuh", ".h", ".cpp", ".cmake", ".txt"):
                seen.update(file.read_bytes())
    return seen.hexdigest()


def earlier(results: Path, marks: dict[str, str]) -> dict[str, Ending]:
    """How parts ended before, the newest of each, by the name of the part; whichever command ran them."""
    found: dict[str, Ending] = {}
    for kind in SECONDS:
        try:
            parts = json.loads((results / f"{kind}.json").read_text())["parts"]
        except (OSError, ValueError):
            continue
        for ending in (Ending(**each) for each in parts if each["date"] and each["part"] in marks):
            if ending.part not in found or ending.date > found[ending.part].date:
                ending.of_other_sources = ending.fingerprint != marks[ending.part]
                found[ending.part] = ending
    return found


def move(files: Path, results: Path, name: str, *, whole: bool, before: str = "not run") -> None:
    """Put what a part has written in the place of what it wrote before.

    What is not whole takes the place of nothing, or of less that is not whole either. before: the verdict of what is
    there, "not run" where it is not whole.
    """
    old, new = results / f"{name}.json", files / f"{name}.json"
    if not whole and old.exists() and (before != "not run" or size(new) <= size(old)):
        return
    old.unlink(missing_ok=True)
    for suffix in (".log", ".md", ".json"):
        if (files / f"{name}{suffix}").exists():
            (files / f"{name}{suffix}").replace(results / f"{name}{suffix}")


def size(document: Path) -> tuple[int, int]:
    """Return the number of cases and of bytes of a document, 0 where there is none."""
    cases = sum(line["cases"] for line in result.lines_of(document))
    return cases, document.stat().st_size if document.exists() else 0


def run(
    part: Part, results: Path, environment: dict[str, str], seconds: float, before: str = "not run"
) -> Ending:
    """One part, ended with all of its processes where it takes longer than it may, or where this process ends.

    before: the verdict of its result of an earlier call.
    """
    files = results / "running"
    files.mkdir(exist_ok=True)
    log, found = files / f"{part.name}.log", files / f"{part.name}.json"
    move(files, results, part.name, whole=False, before=before)  # what a call that was killed has left
    for suffix in (".md", ".json"):
        (files / f"{part.name}{suffix}").unlink(missing_ok=True)
    began, now = time.perf_counter(), datetime.now(UTC).isoformat("T", "seconds")
    with log.open("w") as said:
        words = [sys.executable, *part.words, "--json", str(found)]
        options: dict[str, Any] = {"stdout": said, "stderr": subprocess.STDOUT, "env": environment}
        options |= {"start_new_session": True, "preexec_fn": programs.end_with_parent}
        process = subprocess.Popen(words, cwd=ROOT, **options)
        try:
            code: int | None = process.wait(timeout=min(part.limit, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:  # asked first: those who have started ranks or daemons end them
            programs.end(process, signal.SIGTERM, seconds=GRACE)
    took = time.perf_counter() - began
    lines, said, written = result.lines_of(found), log.read_text(errors="replace"), found.exists()
    cases, passed = (sum(line[key] for line in lines) for key in ("cases", "passed"))
    last = result.last_line(said)
    verdict, why = "passed", ""
    if code is None and took < min(part.limit, HANGS * part.expected):
        verdict, why = "not run", f"ended after {took:.0f} s, when there was no time left"
    elif code is None:
        verdict, why = (
            "failed",
            f"did not end within {took:.0f} s; it said last: {result.last_case(said) or last}",
        )
    elif code == LEFT_OUT:
        verdict, why = "left out", last.removeprefix("gpu-test: ").removeprefix("gpu-bench: ")
    elif code or not written:
        verdict, why = "failed", result.why_failed(said, code, found)
    move(files, results, part.name, whole=verdict != "not run", before=before)
    return Ending(part.name, verdict, why, took, cases, passed, now)


def show(kind: str, about: dict[str, Any], endings: list[Ending]) -> None:
    """The table of parts."""
    left, right = ("part", "verdict"), ("cases", "s")
    console, table = result.console_and_table(f"{about['name']}: {kind}", left, right)
    table.add_column("why", overflow="fold")
    for each in endings:
        cases = f"{each.passed:,} / {each.cases:,}" if each.cases else "-"
        verdict = f"[{MARKS[each.verdict]}]{each.verdict}[/]{', of other sources' * each.of_other_sources}"
        seconds = f"{each.seconds:.0f}" if each.seconds else "-"
        table.add_row(each.part, verdict, cases, seconds, escape(each.why))
    console.print(table)


def options_of(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=tuple(SECONDS))
    parser.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    parser.add_argument("--results", type=Path, default=Path("build/gpu/results"))
    parser.add_argument("--build", type=Path, default=Path("build/gpu"), help="where prepare.py has built")
    parser.add_argument("--shim", type=Path, help="a folder with the shim's plain, sanitized, faulty modules")
    parser.add_argument("--parts", help="these only, separated by commas")
    parser.add_argument("--again", action="store_true", help="those that have passed, too")
    parser.add_argument("--seconds", type=float, help="of all parts; others are left for the next run")
    parser.add_argument("--began", type=float, help="when that time began, in seconds since the epoch")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    if arguments.device == "shim" and arguments.shim is None:
        made = "python tests/gpu/acceptance/shim_modules.py FOLDER makes it"
        parser.error(f"--device shim needs --shim FOLDER ({made})")
    return arguments


def main(words: list[str]) -> int:
    """See above."""
    arguments = options_of(words)
    return result.code_of(lambda: accept(arguments))


def accept(arguments: argparse.Namespace) -> int:
    """Run the parts that are asked for, as far as there is time. Raises InputError where none can run."""
    shim = arguments.device == "shim"
    about = describe("shim", {"name": "shim"}) if shim else Engine.gpu().about()
    parts = parts_of(arguments.kind, arguments.shim, arguments.build, arguments.seed)
    every = [part.name for part in parts]
    names = arguments.parts.split(",") if arguments.parts else every
    if unknown := [name for name in names if name not in every]:
        raise InputError(f"--parts: {unknown[0]!r}; expected {', '.join(every)}")
    arguments.results.mkdir(parents=True, exist_ok=True)
    marks = {part.name: fingerprint(part, about) for part in parts}
    known = earlier(arguments.results, marks)
    asked = {name: "was not reached" if name in names else "was not asked for" for name in every}
    endings = {name: known.get(name) or Ending(name, "not run", asked[name]) for name in every}
    before = {
        name: "not run" if ending.of_other_sources else ending.verdict for name, ending in endings.items()
    }
    spent = max(0.0, time.time() - arguments.began) if arguments.began else 0.0
    until = time.perf_counter() + (arguments.seconds or SECONDS[arguments.kind]) - spent
    environment = os.environ | {"MGG_BENCH_GRAPHS": str(arguments.build.absolute() / "graphs")}
    if library := prepare.mpi_library(arguments.build):
        environment["MPI4PY_LIBMPI"] = str(library.resolve())

    def write() -> None:
        content = {"kind": arguments.kind, "machine": about, "seed": arguments.seed}
        content["parts"] = [asdict(ending) for ending in endings.values()]
        result.write_json(arguments.results / f"{arguments.kind}.json", "mgg-gpu-acceptance", content)
        archive.write(arguments.results)

    left_over = set()
    for part in sorted(parts, key=lambda part: ORDER[before[part.name]]):
        left = until - time.perf_counter()
        if part.name not in names or (before[part.name] == "passed" and not arguments.again):
            continue
        if left < min(part.expected, part.limit):
            left_over.add(part.name)
            if part.name not in known:
                why = f"takes about {part.expected:.0f} s, and {left:.0f} are left"
                endings[part.name] = Ending(part.name, "not run", why)
            continue
        print(f"{part.name} ...", file=sys.stderr, flush=True)
        ended = known[part.name].verdict if part.name in known else "not run"
        ending = run(part, arguments.results, environment, left, ended)
        ending.fingerprint = marks[part.name]
        if ending.verdict == "not run":
            left_over.add(part.name)
        if ending.verdict != "not run" or part.name not in known:  # what was found before is more
            endings[part.name] = ending
        write()
    write()
    show(arguments.kind, about, list(endings.values()))
    verdicts = {endings[name].verdict for name in names}
    if "failed" in verdicts:
        return 1
    if left_over or "not run" in verdicts:
        print("some parts were not run for lack of time: run the same again", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # ends what runs, as Ctrl-C does
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
