"""NVIDIA's Compute Sanitizer over each operation of the table, on small graphs; and over faults that it must report.

racecheck sees shared memory only: races between blocks and between PEs are looked for by the shim, and by the model in
tests/protocol. (The shim has the address sanitizer instead: tests/shim/test_sanitized.py.)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from devices import limit

from .faults import FAULTS
from .pes import table

GRAPHS = ("ordinary", "hub")
SMOKE = Path(__file__).with_name("test_smoke.py")
# Kernels that wait for each other: a tool may run them one after another, and they never end.
WAITING = ("halo", "edges of a halo", "propagate over a halo")
IN_TURNS = "halo in turns"  # the same kernels, which do not wait: the owner's has ended when the other begins
OTHERS = tuple(name for name in table.OPERATIONS if name not in (*WAITING, IN_TURNS, "same bits"))
# What each tool ends its report with: how many errors; racecheck's has hazards.
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
OURS = re.compile(r"\bmgg::")


def command(tool: str, log: Path) -> list[str]:
    """The tool and its options.

    All kernels are looked at by initcheck, since it must know what those of torch have written, and ours by the others.
    API errors are left to our own checks: libraries make some on purpose, to find out what there is.
    """
    found = shutil.which("compute-sanitizer")
    assert found, "no compute-sanitizer on PATH; it comes with the CUDA toolkit"
    options = {"tool": tool, "log-file": log, "print-limit": 500, "check-exit-code": "no"}
    options |= {"target-processes": "application-only"}
    if tool == "initcheck":
        options["check-api-memory-access"] = "no"
    else:
        options["kernel-name"] = "kernel_substring=mgg"
    if tool == "memcheck":
        options |= {"report-api-errors": "no", "padding": "512"}
    return [found, *(f"--{name}={value}" for name, value in options.items())]


def entries(report: str) -> list[str]:
    """What a tool's log says, an entry for each of its reports: a line, and those that are further in."""
    found: list[str] = []
    for line in report.splitlines():
        text = line.lstrip("=")
        if line.startswith("=========") and text.strip():
            if text.startswith("     ") and found:
                found[-1] += f"\n{text.strip()}"
            else:
                found.append(text.strip())
    return [each for each in found if not SUMMARY.search(each)]


def reports(tool: str, log: str) -> list[str]:
    """What a tool reports of our kernels. Fails where its log has no summary: nothing was looked at then."""
    counts = SUMMARY.findall(log)
    assert counts, f"{tool} ended without a summary: {log[-300:]}"
    found = [entry for entry in entries(log) if OURS.search(entry)]
    if any(map(int, counts)) and not found and tool != "initcheck":
        found = entries(log) or ["errors that it does not describe"]
    return found


@pytest.fixture
def examine(request, device, tmp_path):
    """Returns examine(tool, operations, library): what is reported over small graphs, and pytest's exit code."""

    if device == "shim":
        pytest.skip("Compute Sanitizer is for a GPU")

    def run(tool: str, operations: tuple[str, ...], library: Path | None = None) -> tuple[list[str], int]:
        cases = [f"{SMOKE}::test_each_operation[{n}-float32-33-{g}]" for n in operations for g in GRAPHS]
        words = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--timeout=0", "-m", "gpu"]
        library = library or request.config.getoption("--library")
        words += ["--device=cuda", "--patience=1000", *(["--library", library] if library else []), *cases]
        # Each tensor an allocation of its own, whose ends the tool knows. Kernels are loaded lazily: all of torch's
        # would be loaded under the tool otherwise; ours are when the backend starts.
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_MODULE_LOADING": "LAZY"}
        log = tmp_path / "report"
        words = [*command(tool, log), sys.executable, *words]
        done = programs.run_limited(*words, env=environment, seconds=limit(request.node) - 5)
        said = log.read_text(errors="replace") if log.exists() else done.stdout
        return reports(tool, said), done.returncode

    return run


@pytest.mark.gpu(150)
@pytest.mark.parametrize(
    "operations", [OTHERS, (IN_TURNS,), WAITING], ids=["others", "halo in turns", "halo"]
)
@pytest.mark.parametrize("tool", FAULTS)
def test_nothing_is_reported(examine, tool, operations):
    try:
        found, code = examine(tool, operations)
    except subprocess.TimeoutExpired:
        if operations == WAITING:
            pytest.skip("did not end: a tool may run kernels one after another that wait for each other")
        raise
    assert not found and code == 0, "\n".join(found[:3])


@pytest.mark.gpu(60)
@pytest.mark.parametrize("tool", FAULTS)
def test_a_planted_fault_is_reported(examine, tool):
    """By its kind, with the kernel's name."""
    fault = FAULTS[tool]
    library = Path(os.environ.get("MGG_GPU_FAULTY", "build/gpu/faulty/_cuda.so"))
    found, _ = examine(tool, (fault.operation,), library)
    found = [each for each in found if re.search(fault.report, each) and fault.kernel in each]
    assert found, f"{fault.what}: was not reported"
