"""NVIDIA's Nsight Compute: counters of a GPU, for each kernel that a program launches between marks."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import InputError

TIME, READ, WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
SECTORS = "lts__t_sectors_srcunit_tex.sum"  # of the second cache, asked for by multiprocessors
HITS_1, HITS_2 = "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"
OCCUPANCY, MOST_OCCUPANCY = (
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
)
REGISTERS, BLOCKS, THREADS = "launch__registers_per_thread", "launch__grid_size", "launch__block_size"
METRICS = (
    TIME,
    READ,
    WRITTEN,
    SECTORS,
    HITS_1,
    HITS_2,
    OCCUPANCY,
    MOST_OCCUPANCY,
    REGISTERS,
    BLOCKS,
    THREADS,
)
SECTION = "WarpStateStats"  # why warps wait: as many metrics as the architecture has reasons
STALL = re.compile(r"smsp__average_warps_issue_stalled_(?!selected)(\w+)_per_issue_active\.ratio")
SECTOR_BYTES = 32

# Factors that convert units to milliseconds, and to bytes.
UNITS = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1.0, "ms": 1.0, "second": 1e3}
UNITS |= {"s": 1e3, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
NOT_ALLOWED = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True)
class Profiled:
    """A profiled launch.

    function: the kernel's name with its template arguments. values: of metrics, times in milliseconds; metrics that the
    GPU does not have are left out.
    """

    function: str
    values: dict[str, float]

    @property
    def stalls(self) -> dict[str, float]:
        """Reasons why warps waited: waiting warps per warp that issued an instruction, largest first."""
        found = {match[1]: value for name, value in self.values.items() if (match := STALL.fullmatch(name))}
        found = {name: value for name, value in found.items() if not name.endswith("_not_issued")}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def number(text: str, unit: str) -> float | None:
    """Return a value of the report, "1,234.50" in its unit, or None where there is none ("n/a")."""
    try:
        return float(text.replace(",", "")) * UNITS.get(unit, 1.0)
    except ValueError:
        return None


def launches(report: str) -> list[Profiled]:
    """Return the launches in a report as `ncu --csv --page raw` writes it, in their order.

    One line names the columns, one has their units, and each further one is a launch; messages of ncu begin
    with "==". Raises InputError for a report of another form.
    """
    lines = [line for line in report.splitlines() if line.startswith('"')]
    if not lines:
        return []
    columns, units, *rows = csv.reader(lines)
    if "Kernel Name" not in columns or units[columns.index("Kernel Name")]:
        raise InputError(
            f"ncu's report begins with {lines[0][:60]!r}; expected the page raw: names, then units"
        )
    made = []
    for row in rows:
        cells = zip(columns, units, row, strict=True)
        read = {name: number(text, unit) for name, unit, text in cells if "__" in name}
        known = {name: value for name, value in read.items() if value is not None}
        made.append(Profiled(row[columns.index("Kernel Name")], known))
    return made


def program() -> str:
    """Return the path of ncu. Raises InputError where PATH has none."""
    found = shutil.which("ncu")
    if found is None:
        raise InputError(
            "ncu is not on PATH: NVIDIA Nsight Compute, which the CUDA toolkit brings (in its folder bin)"
        )
    return found


def command(ncu: str, functions: Sequence[str], log: Path, child: Sequence[str]) -> list[str]:
    """Return ncu's command line for a program's launches of these kernels between marks, at the GPU's own clock.

    Caches are empty before each pass.
    """
    return [
        ncu,
        "--csv",
        "--page=raw",
        "--print-units=base",
        f"--log-file={log}",
        "--target-processes=all",
        "--profile-from-start=off",
        "--clock-control=none",
        "--cache-control=all",
        f"--kernel-name=regex:{'|'.join(functions)}",
        f"--metrics={','.join(METRICS)}",
        f"--section={SECTION}",
        *child,
    ]


def profile(functions: Sequence[str], child: Sequence[str]) -> tuple[list[Profiled], str]:
    """Run a program under ncu. Return its launches of these kernels, and the last line of an error.

    Raises InputError where there is no ncu, or it may not read counters.
    """
    ncu = program()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "report.csv"
        done = subprocess.run(
            command(ncu, functions, log, child), capture_output=True, text=True, check=False
        )
        report = log.read_text() if log.exists() else ""
    said = report + done.stdout + done.stderr
    if NOT_ALLOWED in said:
        raise InputError(
            f"ncu may not read this GPU's counters ({NOT_ALLOWED}): an administrator allows it to all users by "
            "NVreg_RestrictProfilingToAdminUsers=0, an option of the kernel module nvidia, or starts this container "
            "with the capability SYS_ADMIN"
        )
    wrong = [*errors(report), *(done.stderr.strip().splitlines() if done.returncode else [])]
    return launches(report), wrong[-1] if wrong else ""


def errors(report: str) -> Iterator[str]:
    """Return the errors that ncu reported."""
    mark = "==ERROR== "
    return (line.removeprefix(mark) for line in report.splitlines() if line.startswith(mark))
