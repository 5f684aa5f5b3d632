"""The proof on a GPU, part by part: what passed is not run again, and what has no time is left to the next run.

    python tests/gpu/accept.py test --results build/gpu/results           all of `make gpu-test`
    python tests/gpu/accept.py bench --results build/gpu/results          all of `make gpu-bench`
    python tests/gpu/accept.py test --parts memcheck,racecheck --again    some parts, whatever they were
    python tests/gpu/accept.py test --device shim --shim FOLDER           the same over the host that plays a GPU

A part is a process of its own with a limit of its own. What it wrote is RESULTS/PART.json, and RESULTS/PART.log;
RESULTS/test.json and bench.json say how all of them ended. Exit code 0: all passed, or could not be by what the
machine lacks; 1: some failed; 2: nothing can run; 3: some were left for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
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

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpu import prepare
from gpu.parts import Part, parts_of
from gpu.pes.engine import Engine, describe
from mgg_hpc.errors import InputError

ROOT = Path(__file__).parents[2]
SECONDS = {"test": 520.0, "bench": 1500.0}  # of all parts together, and of building before
HANGS = 3.0  # times as long as expected: what is ended then has not been too slow, but hung
GRACE = 15.0  # seconds between asking a part to end and ending it
LEFT_OUT = 3  # a part's exit code where the machine lacks what it needs
# What decides how a part ends.
KERNELS = ("CMakeLists.txt", "cuda", "mgg_hpc/plan", "mgg_hpc/runtime", "mgg_hpc/reference.py", "tests/gpu")
KERNELS += ("tests/cases.py", "tests/memory.py", "tests/world.py")
SOURCES = {"test": KERNELS, "bench": (*KERNELS, "mgg_hpc/tools/bench", "mgg_hpc/nn", "mgg_hpc/data")}
# What was never run comes first, and what has failed last: it may hang again.
ORDER = {"not run": 0, "left out": 1, "passed": 2, "failed": 3}
MARKS = {"passed": "green", "failed": "red", "left out": "yellow", "not run": "yellow"}


@dataclass
class Ending:
    """How a part ended. verdict: "passed", "failed", "left out" (with a reason) or "not run" (no time)."""

    part: str
    verdict: str
    why: str = ""
    seconds: float = 0.0
    cases: int = 0
    passed: int = 0
    date: str = ""


def fingerprint(kind: str, about: dict[str, Any]) -> str:
    """Of all sources that decide, of the GPU, its driver and libraries: what was found for others does not count."""
    seen = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name in SOURCES[kind]:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.suffix in (".py", ".cu", ".cuh", ".h", ".cpp", ".cmake", ".txt"):
                seen.update(file.read_bytes())
    return seen.hexdigest()


def earlier(results: Path, kind: str, mark: str) -> dict[str, Ending]:
    """What parts of the same sources on the same GPU ended with before."""
    try:
        found = json.loads((results / f"{kind}.json").read_text())
    except (OSError, ValueError):
        return {}
    if found.get("fingerprint") != mark:
        return {}
    return {each["part"]: Ending(**each) for each in found["parts"]}


def last_line(log: Path) -> str:
    """What a program said last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if any(map(str.isalnum, line))), "nothing was said")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all that it has started. Asked first: those who have started ranks or daemons end them."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError):  # and what it left behind
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(part: Part, results: Path, environment: dict[str, str], seconds: float) -> Ending:
    """One part, ended with all of its processes where it takes longer than it may."""
    log, found = results / f"{part.name}.log", results / f"{part.name}.json"
    found.unlink(missing_ok=True)
    began, now = time.perf_counter(), datetime.now(UTC).isoformat("T", "seconds")
    with log.open("w") as said:
        words = [sys.executable, *part.words, "--json", str(found)]
        process = subprocess.Popen(
            words, stdout=said, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=min(part.limit, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    took = time.perf_counter() - began
    try:
        lines = json.loads(found.read_text()).get("lines", [])
    except (OSError, ValueError):
        lines = []
    cases, passed = (sum(line[key] for line in lines) for key in ("cases", "passed"))
    failures = [failure for line in lines for failure in line["failures"]]
    verdict, why = "passed", ""
    if code is None and took < min(part.limit, HANGS * part.expected):
        verdict, why = "not run", f"ended after {took:.0f} s, when there was no time left"
    elif code is None:
        verdict, why = "failed", f"did not end within {took:.0f} s; it said last: {last_line(log)}"
    elif code == LEFT_OUT:
        verdict, why = "left out", last_line(log).removeprefix("gpu-test: ").removeprefix("gpu-bench: ")
    elif code or not found.exists():
        verdict, why = "failed", failures[0] if failures else f"{last_line(log)} (exit code {code})"
    return Ending(part.name, verdict, why, took, cases, passed, now)


def show(kind: str, about: dict[str, Any], endings: list[Ending]) -> None:
    """The table of parts."""
    console = Console(width=None if Console().is_terminal else 110, highlight=False)
    table = Table(title=f"{about['name']}: {kind}")
    for column in ("part", "verdict"):
        table.add_column(column)
    for column in ("cases", "s"):
        table.add_column(column, justify="right")
    table.add_column("why", overflow="fold")
    for each in endings:
        cases = f"{each.passed:,} / {each.cases:,}" if each.cases else "-"
        verdict = f"[{MARKS[each.verdict]}]{each.verdict}[/]"
        table.add_row(
            each.part, verdict, cases, f"{each.seconds:.0f}" if each.seconds else "-", escape(each.why)
        )
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
    parser.add_argument(
        "--shim", type=Path, help="a folder with plain, sanitized and faulty modules of the shim"
    )
    parser.add_argument("--parts", help="these only, separated by commas")
    parser.add_argument("--again", action="store_true", help="those that have passed, too")
    parser.add_argument(
        "--seconds", type=float, help="of all parts together; others are left for the next run"
    )
    parser.add_argument("--began", type=float, help="when that time began, in seconds since the epoch")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(words)
    if arguments.device == "shim" and arguments.shim is None:
        parser.error(
            "--device shim needs --shim FOLDER (python tests/gpu/acceptance/shim_modules.py FOLDER makes it)"
        )
    return arguments


def interrupted(number: int, frame: object) -> None:
    """Ends what runs, as Ctrl-C does."""
    raise KeyboardInterrupt


def main(words: list[str]) -> int:
    """See above."""
    arguments = options_of(words)
    shim = arguments.device == "shim"
    try:
        about = describe("shim", {"name": "shim"}) if shim else Engine.gpu().about()
    except InputError as error:
        print(f"gpu-test: {error}", file=sys.stderr)
        return 2
    parts = parts_of(arguments.kind, arguments.shim, arguments.build, arguments.seed)
    if arguments.parts:
        names = arguments.parts.split(",")
        if unknown := [name for name in names if name not in [part.name for part in parts]]:
            known = ", ".join(part.name for part in parts)
            print(f"gpu-test: --parts: {unknown[0]!r}; expected {known}", file=sys.stderr)
            return 2
    else:
        names = [part.name for part in parts]
    arguments.results.mkdir(parents=True, exist_ok=True)
    mark = fingerprint(arguments.kind, about)
    known, endings = earlier(arguments.results, arguments.kind, mark), {}
    spent = max(0.0, time.time() - arguments.began) if arguments.began else 0.0
    until = time.perf_counter() + (arguments.seconds or SECONDS[arguments.kind]) - spent
    environment = dict(os.environ)
    if library := prepare.mpi_library(arguments.build):
        environment["MPI4PY_LIBMPI"] = str(library.resolve())
    for part in sorted(
        parts, key=lambda part: ORDER[known[part.name].verdict if part.name in known else "not run"]
    ):
        before = known.get(part.name)
        if part.name not in names or (before and before.verdict == "passed" and not arguments.again):
            endings[part.name] = before or Ending(part.name, "not run", "was not asked for")
            continue
        left = until - time.perf_counter()
        if left < min(part.expected, part.limit):
            endings[part.name] = Ending(
                part.name, "not run", f"takes about {part.expected:.0f} s, and {left:.0f} are left"
            )
        else:
            print(f"{part.name} ...", file=sys.stderr, flush=True)
            endings[part.name] = run(part, arguments.results, environment, left)
        found = {
            "format": "mgg-gpu-acceptance",
            "version": 1,
            "kind": arguments.kind,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": about,
            "fingerprint": mark,
            "seed": arguments.seed,
            "parts": [asdict(endings.get(each.name) or Ending(each.name, "not run")) for each in parts],
        }
        written = arguments.results / f"{arguments.kind}.json"
        written.with_suffix(".part").write_text(json.dumps(found, indent=2) + "\n")
        written.with_suffix(".part").rename(written)
    show(arguments.kind, about, [endings[part.name] for part in parts])
    verdicts = {each.verdict for name, each in endings.items() if name in names}
    if "failed" in verdicts:
        return 1
    if "not run" in verdicts:
        print("some parts were not run for lack of time: run the same again", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
