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
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

from gpu import result
from gpu.engine import Engine, describe
from gpu.faults import FAULTS
from gpu.result import Line
from mgg_hpc.errors import InputError

RUN = Path(__file__).parent / "run.py"
TOOLS = tuple(FAULTS)
SECONDS = 240  # of one tool
# What each tool ends its report with: how many errors; racecheck's has hazards, of which these are more than hints.
SUMMARY = {tool: re.compile(r"ERROR SUMMARY: (\d+) error") for tool in TOOLS}
SUMMARY["racecheck"] = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")
ENTRY = re.compile(
    r"^=+\s+((?:Error|Warning|Invalid|Uninitialized|Barrier|Potential|Race)\b.*)", re.MULTILINE
)
MOST_PRINTED = 20


@dataclass(frozen=True)
class Report:
    """How many reports a tool made, the first of them, and whether the program itself did what it should."""

    count: int
    first: str
    passed: bool


def command(tool: str, log: Path) -> list[str]:
    """The tool on kernels of ours only. Raises InputError where there is no Compute Sanitizer.

    What other kernels write initcheck does not see then; but all memory is zeroed or copied to before, which it sees.
    API errors are left to our own checks: libraries make some on purpose, to find out what there is.
    """
    found = shutil.which("compute-sanitizer")
    if found is None:
        raise InputError("no compute-sanitizer on PATH; it comes with the CUDA toolkit")
    options = {
        "tool": tool,
        "kernel-name": "kernel_substring=mgg",
        "log-file": str(log),
        "print-limit": str(MOST_PRINTED),
        "check-exit-code": "no",
    }
    if tool == "memcheck":
        options |= {"report-api-errors": "no", "padding": "512"}
    return [found, *(f"--{name}={value}" for name, value in options.items())]


def on_gpu(tool: str, words: list[str], seconds: float) -> Report:
    """Raises InputError where the tool is not there, takes too long, or does not say how many errors it found."""
    with tempfile.TemporaryDirectory(prefix="mgg-sanitize-") as folder:
        log = Path(folder) / "report"
        # Each tensor an allocation of its own, whose ends the tool knows.
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        try:
            done = subprocess.run(
                [*command(tool, log), sys.executable, str(RUN), *words],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{tool}: took more than {seconds:.0f} s") from error
        report = log.read_text(errors="replace") if log.exists() else ""
    summary = SUMMARY[tool].search(report)
    if summary is None:
        said = (report + done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise InputError(f"{tool}: ended without a summary; the last that was said: {said[-1].strip()}")
    first = ENTRY.search(report)
    return Report(int(summary[1]), first[1].strip() if first else "", done.returncode == 0)


def on_shim(tool: str, words: list[str], seconds: float) -> Report:
    """The shim's failures; of memcheck the address sanitizer's, with which the library was built."""
    environment = dict(os.environ)
    if tool == "memcheck":
        import sanitizers

        environment = sanitizers.environment("g++")
    done = subprocess.run(
        [sys.executable, str(RUN), "--device", "shim", *words],
        env=environment | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds,
    )
    if tool == "memcheck":
        found = re.findall(r"(?:ERROR: AddressSanitizer|runtime error): ?(.*)", done.stderr)
    else:
        found = re.findall(r"^[a-z ]+-\w+-\d+-\w+: (.*)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) and not found:
        raise InputError(f"{tool}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return Report(len(found), found[0] if found else "", done.returncode == 0)


def examine(device: str, tool: str, words: list[str]) -> Report:
    """Run the table under a tool. Raises InputError where that did not run."""
    return (on_gpu if device == "cuda" else on_shim)(tool, [*words, "--small"], SECONDS)


def clean(device: str, tool: str, library: list[str]) -> Line:
    """No reports, and all cases pass."""
    line, began = Line(tool, "float32"), time.perf_counter()
    try:
        report = examine(device, tool, library)
        if report.count:
            line.add(f"{report.count} reports", None, report.first)
        else:
            line.add(tool, 0.0 if report.passed else None, "no reports, but some cases failed")
    except InputError as error:
        line.add(tool, None, str(error))
    line.seconds = time.perf_counter() - began
    return line


def planted(device: str, tool: str, library: list[str]) -> Line:
    """At least one report."""
    fault = FAULTS[tool]
    line, began = Line(f"planted: {tool}", "float32"), time.perf_counter()
    try:
        report = examine(device, tool, [*library, "--operations", fault.operation])
        line.add(fault.what, 0.0 if report.count else None, "was not reported")
    except InputError as error:
        line.add(fault.what, None, str(error))
    line.seconds = time.perf_counter() - began
    return line


def main(words: list[str]) -> int:
    """See above."""
    parser = result.parser(__doc__)
    parser.add_argument("what", choices=(*TOOLS, "planted"))
    parser.add_argument(
        "--libraries", type=Path, help="a folder with TOOL/_cuda.so of each, where they are several"
    )
    arguments = parser.parse_args(words)
    every = TOOLS if arguments.what == "planted" else (arguments.what,)
    try:
        # A library for the address sanitizer does not load into this process.
        about = Engine.gpu().about() if arguments.device == "cuda" else describe("shim", {"name": "shim"})
    except InputError as error:
        print(f"gpu-test: {error}", file=sys.stderr)
        return 2
    lines, began = [], time.perf_counter()
    for tool in every:
        module = arguments.libraries / tool / "_cuda.so" if arguments.libraries else arguments.library
        library = ["--library", str(module)] if module else []
        lines.append((planted if arguments.what == "planted" else clean)(arguments.device, tool, library))
    result.show(f"{about['name']}: {arguments.what}", lines)
    result.write(arguments.json, about, lines, time.perf_counter() - began)
    return int(result.failed(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
