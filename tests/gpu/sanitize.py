"""NVIDIA's Compute Sanitizer over each operation of the table, on small graphs; and over faults that it must report.

    python tests/gpu/sanitize.py memcheck --json result.json
    python tests/gpu/sanitize.py planted --library FAULTY/_cuda.so

On the shim its own checks stand in for the tools, and the address sanitizer for memcheck. racecheck sees shared memory
only: races between blocks and between PEs are looked for by the shim, and by the model in tests/protocol.

Exit codes are those of run.py; a tool that is not there, or says nothing, is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import programs

from gpu import result
from gpu.parts import TOOLS
from gpu.pes import table
from gpu.pes.engine import Engine, describe
from gpu.result import Line
from gpu.variants.faults import FAULTS
from mgg_hpc.errors import InputError

RUN = Path(__file__).parent / "run.py"
# Kernels that wait for each other: what a tool slows down, or runs one after another, may never end.
WAITING = ("halo", "edges of a halo")
IN_TURNS = "halo in turns"  # the same kernels, which do not wait: the owner's has ended when the other begins
SECONDS, TURNS_SECONDS, WAITING_SECONDS, PLANTED_SECONDS = 150.0, 50.0, 80.0, 55.0  # of one run of a tool
# What each tool ends its report with: how many errors; racecheck's has hazards.
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
OURS = re.compile(r"\bmgg::")
MOST_PRINTED = 500


@dataclass(frozen=True)
class Report:
    """What a tool reported of our kernels, and whether the program itself did what it should."""

    entries: tuple[str, ...]
    passed: bool


class OutOfTimeError(InputError):
    """A run of a tool had no end in its time."""


def command(tool: str, log: Path) -> list[str]:
    """The tool and its options. Raises InputError where there is no Compute Sanitizer.

    All kernels are looked at by initcheck, since it must know what those of torch have written, and ours by the others.
    API errors are left to our own checks: libraries make some on purpose, to find out what there is.
    """
    found = shutil.which("compute-sanitizer")
    if found is None:
        raise InputError("no compute-sanitizer on PATH; it comes with the CUDA toolkit")
    options = {
        "tool": tool,
        "log-file": str(log),
        "print-limit": str(MOST_PRINTED),
        "check-exit-code": "no",
        "target-processes": "application-only",
    }
    if tool == "initcheck":
        options["check-api-memory-access"] = "no"
    else:
        options["kernel-name"] = "kernel_substring=mgg"
    if tool == "memcheck":
        options |= {"report-api-errors": "no", "padding": "512"}
    return [found, *(f"--{name}={value}" for name, value in options.items())]


def entries(report: str) -> tuple[str, ...]:
    """What a tool's log says, an entry for each of its reports: a line, and those that are further in."""
    found: list[list[str]] = []
    for line in report.splitlines():
        text = line.lstrip("=")
        if line.startswith("=========") and text.strip():
            if text.startswith("     ") and found:
                found[-1].append(text.strip())
            else:
                found.append([text.strip()])
    return tuple("\n".join(each) for each in found if not SUMMARY.search(each[0]))


def run(words: list[str], environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program, and end it with all that it has started where it takes longer. Raises OutOfTimeError then."""
    try:
        return programs.run_limited(*words, env=environment, seconds=seconds)
    except subprocess.TimeoutExpired as error:
        case = result.last_case(str(error.output))
        raise OutOfTimeError(f"took more than {seconds:.0f} s{f', in {case}' if case else ''}") from error


def on_gpu(tool: str, words: list[str], seconds: float) -> Report:
    """Raises InputError where the tool is not there, takes too long, or does not say how many errors it found."""
    with tempfile.TemporaryDirectory(prefix="mgg-sanitize-") as folder:
        log = Path(folder) / "report"
        # Each tensor an allocation of its own, whose ends the tool knows. Kernels are loaded lazily: all of torch's
        # would be loaded under the tool otherwise; ours are when the backend starts.
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_MODULE_LOADING": "LAZY"}
        words = [*command(tool, log), sys.executable, str(RUN), "--end-with-parent", *words]
        done = run(words, environment, seconds)
        report = log.read_text(errors="replace") if log.exists() else ""
    if SUMMARY.search(report) is None:
        said = (report + done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise InputError(f"ended without a summary; the last that was said: {said[-1].strip()}")
    found = tuple(entry for entry in entries(report) if OURS.search(entry))
    if any(int(count) for count in SUMMARY.findall(report)) and not found and tool != "initcheck":
        found = entries(report) or ("errors that it does not describe",)
    return Report(found, done.returncode == 0)


def on_shim(tool: str, words: list[str], seconds: float) -> Report:
    """The shim's failures; of memcheck the address sanitizer's, with which the library was built."""
    environment = os.environ | {"COLUMNS": "200"}
    if tool == "memcheck":
        from builds import sanitized_environment

        environment |= sanitized_environment("g++")
    done = run([sys.executable, str(RUN), "--device", "shim", *words], environment, seconds)
    if tool == "memcheck":
        found = re.findall(r"(?:ERROR: AddressSanitizer|runtime error): ?(.*)", done.stderr)
    else:
        found = re.findall(r"^[a-z ]+-\w+-\d+-\w+: (.*)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) and not found:
        raise InputError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    return Report(tuple(found), done.returncode == 0)


def examine(device: str, tool: str, words: list[str], seconds: float) -> Report:
    """Run the table under a tool. Raises InputError where that did not run."""
    words = [*words, "--small", "--case-seconds", str(2 * seconds)]  # the run as a whole is limited
    return (on_gpu if device == "cuda" else on_shim)(tool, words, seconds)


def looked(line: Line, name: str, look: Callable[[], str], *, waits: bool = False) -> None:
    """Add a case to the line: what ``look`` finds wrong, or nothing.

    waits: kernels that wait for each other, and are left out where they do not end in time.
    """
    with line.timed():
        try:
            wrong = look()
        except OutOfTimeError as error:
            if waits:
                line.left_out.append(
                    f"{name}: {error}; a tool may run kernels one after another that wait for each other"
                )
                return
            wrong = str(error)
        except InputError as error:
            wrong = str(error)
    line.add(name, 0.0, wrong)


def clean(line: Line, device: str, tool: str, library: list[str]) -> None:
    """Expect no reports, and that all cases pass: first those that do not wait for each other, then those that do.

    A halo must pass with its two kernels one after the other; at once it may be left out.
    """

    def look(operations: list[str], seconds: float) -> str:
        report = examine(device, tool, [*library, "--operations", ",".join(operations)], seconds)
        if report.entries:
            return f"{len(report.entries)} reports: {report.entries[0]}"
        return "" if report.passed else "no reports, but some cases failed"

    others = [name for name in table.OPERATIONS if name not in (*WAITING, IN_TURNS, "same bits")]
    looked(line, tool, lambda: look(others, SECONDS))
    looked(line, f"{tool}, halo, one after another", lambda: look([IN_TURNS], TURNS_SECONDS))
    looked(line, f"{tool}, halo", lambda: look(list(WAITING), WAITING_SECONDS), waits=True)


def planted(line: Line, device: str, tool: str, library: list[str]) -> None:
    """Expect a report of the right kind that names the kernel. (The shim's checks name neither.)"""
    fault = FAULTS[tool]

    def look() -> str:
        found = examine(device, tool, [*library, "--operations", fault.operation], PLANTED_SECONDS).entries
        if device == "cuda":
            found = tuple(each for each in found if re.search(fault.report, each) and fault.kernel in each)
        return "" if found else "was not reported"

    looked(line, fault.what, look)


def main(words: list[str]) -> int:
    """See above."""
    parser = result.parser(__doc__)
    parser.add_argument("what", choices=(*TOOLS, "planted"))
    parser.add_argument(
        "--libraries", type=Path, help="a folder with TOOL/_cuda.so of each, where they are several"
    )
    arguments = parser.parse_args(words)
    plants = arguments.what == "planted"

    def part() -> int:
        # A library for the address sanitizer does not load into this process.
        about = Engine.gpu().about() if arguments.device == "cuda" else describe("shim", {"name": "shim"})
        report = result.Report(arguments, about)
        for tool in TOOLS if plants else (arguments.what,):
            module = arguments.libraries / tool / "_cuda.so" if arguments.libraries else arguments.library
            library = ["--library", str(module)] if module else []
            line = report.line(f"planted: {tool}" if plants else tool, "float32")
            (planted if plants else clean)(line, arguments.device, tool, library)
            report.write()
        return report.finish(arguments.what)

    return result.code_of(part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
