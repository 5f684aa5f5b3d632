"""Registers, stack, local and shared memory of the GPU kernels as linked: `make cuda` prints a line for each kind."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# Kernels that may have a stack: NVSHMEM's calls take one.
NOT_HOT = re.compile(r"gather_rows<\d+, true>|aggregate_(get|halo)<.*, true>|give_credits<true>|device::")


class Used(NamedTuple):
    """What a kernel takes: registers a thread, and bytes. Local memory is what it spills, or keeps beside a stack."""

    registers: int
    stack: int
    shared: int
    local: int


def module() -> Path | None:
    """Return the module that `make cuda` has built, if it has."""
    return next(iter(sorted((ROOT / "mgg_hpc").glob("_cuda.*so"))), None)


def cuobjdump() -> str | None:
    """Return the program, of the CUDA toolkit or its wheel."""
    wheel = Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13" / "bin"
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=str(wheel))


def measured(library: Path, program: str) -> dict[tuple[str, str], Used]:
    """Return what each kernel of a module takes, by its architecture and name."""
    dumped = subprocess.run([program, "-res-usage", library], capture_output=True, text=True, check=True)
    plain = subprocess.run(
        ["c++filt"], input=dumped.stdout + dumped.stderr, capture_output=True, text=True, check=True
    )
    found = {}
    architecture, kernel = "", ""
    for line in plain.stdout.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function (?:void )?mgg::(.*)\(", line):
            kernel = match[1].replace("mgg::", "")
        elif "Function" in line:
            kernel = ""  # the compiler's own
        elif kernel and (match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line)):
            found[architecture, kernel] = Used(*map(int, match.groups()))
            kernel = ""
    return found


def main() -> int:
    """Print the least and the most that the kernels of each name take, on each architecture."""
    program, library = cuobjdump(), module()
    if program is None or library is None:
        print("needs cuobjdump and a built mgg_hpc/_cuda: make cuda", file=sys.stderr)
        return 2
    kinds = defaultdict(list)
    for (architecture, kernel), used in measured(library, program).items():
        kinds[architecture, kernel.partition("<")[0]].append(used)
    print(
        f"{'arch':7} {'kernels':32} {'count':>5} {'registers':>10} {'stack':>9} {'shared':>13} {'local':>6}"
    )
    for (architecture, kind), all_used in sorted(kinds.items()):
        ranges = [f"{min(each)}-{max(each)}" for each in zip(*all_used, strict=True)]
        print("{:7} {:32} {:5} {:>10} {:>9} {:>13} {:>6}".format(architecture, kind, len(all_used), *ranges))
    return 0


if __name__ == "__main__":
    sys.exit(main())
