"""Run the test suite part by part, show how far it is, go on after a part that failed, and sum up.

    python tests/suite/run.py test                 the parts of `make test`
    python tests/suite/run.py lint test long       several groups, as .ci/run does
    python tests/suite/run.py --list test          what would run
    python tests/suite/run.py long --only gpu      the parts of a group whose names contain "gpu"
    python tests/suite/run.py long --minutes 20    in about 20 minutes, if parts with a time limit can run fewer tests

All that a part prints is in build/tests/PART.log. Exit code 0: all parts passed; 1: some failed; 2: no such part; 130:
interrupted, after a table of what had run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import programs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from suite.parts import GROUPS, Part
from suite.seeds import FIXED, SEED

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "tests"
POLL = 0.2  # seconds between looks at a part
GRACE = 10.0  # seconds between asking a part to end and ending it
LEAST_SHARE = 0.1  # of Part.time_limit, however little time is left
INTERRUPTED = 130
QUIET = 30.0  # seconds between two lines that tell how far a part is, where there is no terminal
MOST_SHOWN = 120  # lines of a log that are printed when a part fails
INSTALL = re.compile(r"\((apt install [^()]*|make \w+)\)$")  # how a reason to skip a test ends


@dataclass
class Outcome:
    """How a part ended: "passed", "failed" or "skipped" (why says what the machine lacks), and its tests."""

    part: Part
    result: str
    why: str = ""
    seconds: float = 0.0
    total: int | None = None
    tests: Counter[str] = field(default_factory=Counter)
    skips: Counter[str] = field(default_factory=Counter)

    def read(self, lines: list[str]) -> None:
        """Add what a part has reported since the last call, see report.py."""
        for line in map(json.loads, lines):
            self.total = line.get("total", self.total)
            if "test" in line:
                self.tests[line["outcome"]] += 1
            if line.get("outcome") == "skipped":
                self.skips[line["why"]] += 1

    def count(self) -> str:
        """Return the number of tests that ran, and of how many where some did not."""
        done = sum(self.tests.values())
        return f"{done:,} of {self.total:,}" if self.total is not None and self.total > done else f"{done:,}"


def main(words: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run the test suite part by part.")
    parser.add_argument("groups", nargs="+", choices=GROUPS, help="which groups of parts")
    parser.add_argument("--only", default="", metavar="TEXT", help="the parts whose names contain this")
    parser.add_argument("--minutes", type=float, metavar="M", help="end in about M minutes, if limits allow")
    parser.add_argument("--list", action="store_true", help="print the parts and their commands, run nothing")
    chosen = parser.parse_args(words)
    parts = [part for group in chosen.groups for part in GROUPS[group] if chosen.only in part.name]
    if not parts:
        names = ", ".join(part.name for group in chosen.groups for part in GROUPS[group])
        groups = " ".join(chosen.groups)
        print(f"no part of {groups} is named like '{chosen.only}'; there are {names}", file=sys.stderr)
        return 2
    if chosen.list:
        for part in parts:
            print(f"{part.name}: {' '.join(command_of(part))}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the part that runs is ended
    return run_all(parts, Console(soft_wrap=True, markup=False), chosen.minutes)


def run_all(parts: list[Part], console: Console, minutes: float | None = None) -> int:
    """Run the parts one after another and print a table of them.

    minutes: about how long all of them may take. The time limits of parts that have one are shortened to fit.
    """
    seeds = seeds_of(parts)
    for kind, seed in seeds.items():
        new = " (new in each run)" if kind == "new" and SEED not in os.environ else ""
        console.print(f"random numbers: {SEED}={seed}{new}")
    began = time.monotonic()
    outcomes: list[Outcome] = []
    interrupted = False
    for number, part in enumerate(parts, 1):
        left = math.inf if minutes is None else 60 * minutes - (time.monotonic() - began)
        limited = replace(part, time_limit=time_limit_of(parts[number - 1 :], left))
        try:
            outcome = run(limited, seeds.get(part.seed, str(FIXED)), f"[{number}/{len(parts)}]", console)
        except KeyboardInterrupt:
            console.print(f"interrupted in {part.name}")
            interrupted = True
            break
        outcomes.append(outcome)
        if outcome.result == "failed":
            show_failure(outcome)
    sum_up(outcomes, time.monotonic() - began, console)
    return INTERRUPTED if interrupted else int(any(outcome.result == "failed" for outcome in outcomes))


def time_limit_of(parts: list[Part], left: float) -> float:
    """Return `Part.time_limit` of the first of these parts, or its share of the seconds ``left`` for all of them.

    Time of parts without a limit is not set aside, so they should run first.
    """
    limit = parts[0].time_limit
    if not limit or left == math.inf:
        return limit
    share = left / sum(part.time_limit for part in parts)
    return math.ceil(limit * min(max(share, LEAST_SHARE), 1))


def seeds_of(parts: list[Part]) -> dict[str, str]:
    """Return the seed of each kind of parts (`Part.seed`) that there are: MGG_TEST_SEED of the environment if set."""
    made = {"fixed": str(FIXED), "new": str(secrets.randbelow(10**6))}
    kinds = {part.seed for part in parts if part.seed}
    return {kind: os.environ.get(SEED, seed) for kind, seed in made.items() if kind in kinds}


def run(part: Part, seed: str, place: str, console: Console) -> Outcome:
    """Run one part to its end, or until its timeout."""
    missing = [program for program in part.programs if shutil.which(program) is None]
    if missing and os.environ.get("CI") != "true":
        why = f"no {' or '.join(missing)} ({part.install})"
        console.print(f"{place} {part.name}: skipped, {why}", highlight=False)
        return Outcome(part, "skipped", why)
    if not console.is_terminal:
        console.print(f"{place} {part.name} ...")
    FOLDER.mkdir(parents=True, exist_ok=True)
    report = file_of(part, "jsonl")
    report.unlink(missing_ok=True)
    command = [*command_of(part), *(["--report", str(report)] if part.reports else [])]
    outcome = Outcome(part, "failed")
    began = time.monotonic()
    with file_of(part, "log").open("w") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, SEED: seed, **part.environment},
            start_new_session=True,
        )
        try:
            outcome.why = watch(process, part, report, outcome, place, console)
        finally:
            programs.end(process, signal.SIGINT, signal.SIGTERM, seconds=GRACE)  # asked first, to clean up
    outcome.seconds = time.monotonic() - began
    if not outcome.why and process.returncode == 0:
        outcome.result = "passed"
    elif not outcome.why:
        failed = outcome.tests["failed"]
        outcome.why = f"{failed} failed" if failed else f"exit code {process.returncode}"
    told = f"{outcome.result} in {outcome.seconds:.0f} s{counted(outcome)}"
    console.print(f"{place} {part.name}: {told}", highlight=False)
    return outcome


def command_of(part: Part) -> list[str]:
    """Return the command of a part with its time limit."""
    return [*part.command, *(["--seconds", str(part.time_limit)] if part.time_limit else [])]


def file_of(part: Part, kind: str) -> Path:
    """Return where a part's report ("jsonl") or all that it prints ("log") is kept."""
    return FOLDER / f"{part.name.replace(' ', '-')}.{kind}"


def watch(
    process: subprocess.Popen[bytes], part: Part, report: Path, outcome: Outcome, place: str, console: Console
) -> str:
    """Show how far a part is until it ends; returns what went wrong beside its exit code, or nothing."""
    name, failures = TextColumn("{task.description}"), TextColumn("{task.fields[failed]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), failures, TimeElapsedColumn())
    deadline, read, told = time.monotonic() + part.timeout, 0, time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{place} {part.name}", total=None, failed="")
        while True:
            ended = process.poll() is not None
            if report.exists():
                with report.open() as file:
                    file.seek(read)
                    text = file.read()
                whole = text.rpartition("\n")[0]
                read += len(whole) + 1 if whole else 0
                outcome.read(whole.splitlines())
            failed = f"{outcome.tests['failed']} failed" if outcome.tests["failed"] else ""
            done = sum(outcome.tests.values())
            progress.update(task, total=outcome.total, completed=done, failed=failed)
            if ended:
                return "" if not part.reports or done else "no test ran"
            if not console.is_terminal and time.monotonic() > told + QUIET:
                told = time.monotonic()
                tests = f"{done:,} of {outcome.total or '?'} tests" if part.reports else "runs"
                console.print(f"{place} {part.name}: {tests}")
            if time.monotonic() > deadline:
                return f"did not end within {part.timeout:.0f} s"
            time.sleep(POLL)


def counted(outcome: Outcome) -> str:
    """Return ": 12 tests, 1 failed, 2 skipped" where a part has tests."""
    if not outcome.part.reports:
        return f" ({outcome.why})" if outcome.why else ""
    named = [f"{outcome.tests[kind]} {kind}" for kind in ("failed", "skipped") if outcome.tests[kind]]
    why = [outcome.why] if outcome.why and not outcome.tests["failed"] else []
    return ": " + ", ".join([f"{outcome.count()} tests", *named, *why])


def show_failure(outcome: Outcome) -> None:
    """Print what a part that failed said, from the first failure that pytest reports on."""
    log = file_of(outcome.part, "log")
    lines = log.read_text(errors="replace").splitlines()
    first = next((at for at, line in enumerate(lines) if re.match(r"=+ (FAILURES|ERRORS) =+", line)), None)
    shown = lines[-MOST_SHOWN:]
    if first is not None:
        end = first + MOST_SHOWN
        shown = lines[first:end] + lines[max(end, len(lines) - 20) :]
    print("\n".join(shown))
    print(f"all of it: {log.relative_to(ROOT)}", flush=True)


def sum_up(outcomes: list[Outcome], seconds: float, console: Console) -> None:
    """Print the table of parts, what was skipped and why, and the number of tests."""
    table = Table(title=f"{len(outcomes)} parts in {seconds // 60:.0f} min {seconds % 60:.0f} s")
    for name in ("part", "tests", "failed", "skipped", "s", "result"):
        table.add_column(name, justify="left" if name in ("part", "result") else "right")
    for outcome in outcomes:
        tests = outcome.tests
        counts = [outcome.count(), f"{tests['failed']:,}", f"{tests['skipped']:,}"]
        result = outcome.result + (f": {outcome.why}" if outcome.why else "")
        counts = counts if outcome.part.reports else [""] * 3
        table.add_row(outcome.part.name, *counts, f"{outcome.seconds:.0f}", result)
    console.print(table)
    for line in skipped(outcomes):
        console.print(line, highlight=False)
    total = sum((outcome.tests for outcome in outcomes), Counter())
    # A part without tests, or one that failed otherwise than by a test, counts as one.
    total["passed"] += sum(not o.part.reports and o.result == "passed" for o in outcomes)
    total["failed"] += sum(o.result == "failed" and not o.tests["failed"] for o in outcomes)
    counts = [f"{total['passed']} passed", f"{total['failed']} failed"]
    counts += [f"{total['skipped']} skipped"] if total["skipped"] else []
    print(", ".join(counts), flush=True)


def skipped(outcomes: list[Outcome]) -> list[str]:
    """Return one line for each command that would install what tests lack, and one for each other reason to skip."""
    tests: Counter[str] = Counter()
    reasons: dict[str, set[str]] = defaultdict(set)
    for outcome in outcomes:
        for why, count in ({outcome.why: 0} if outcome.result == "skipped" else outcome.skips).items():
            found = INSTALL.search(why)
            install = found[1] if found else why
            tests[install] += count
            what = why.removesuffix(f" ({install})") if count else f"all of '{outcome.part.name}'"
            reasons[install].add(what)
    lines = []
    for install, named in reasons.items():
        many = "s" if tests[install] > 1 else ""
        what = f"{tests[install]} test{many} skipped: " if tests[install] else "skipped: "
        why = "; ".join(sorted(named))
        lines.append(what + why + (f"; to run them: {install}" if install not in named else ""))
    return lines


if __name__ == "__main__":
    sys.exit(main())
