"""Registers, shared memory and stack of every GPU kernel, from the linked module; `resources.csv` is what they may be.

python tests/nvcc/resources.py            compares, and says what is worse
python tests/nvcc/resources.py --update   writes the table anew

The table has a line for each kernel. Where architectures differ in a value, it has one for each of them.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("resources.csv")
COLUMNS = ("registers", "stack", "local", "shared")
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# Kernels that may have a stack: NVSHMEM's calls take one.
NOT_HOT = re.compile(
    r"gather_rows<\d+, true>|aggregate_(get|halo)<.*, true>|studies::aggregate_scoped_get|give_credits<true>|device::"
)

Used = dict[tuple[str, str], tuple[int, ...]]


def cuobjdump() -> str | None:
    """The program, of the CUDA toolkit or its wheel."""
    wheel = Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13" / "bin"
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=str(wheel))


def module() -> Path | None:
    """The module that was built, if it was."""
    return next(iter(sorted((ROOT / "mgg_hpc").glob("_cuda.*so"))), None)


def architectures(library: Path, program: str) -> list[str]:
    """Those that a module was compiled for. Raises ValueError for a module without GPU code."""
    listed = subprocess.run([program, "-lelf", library], capture_output=True, text=True, check=True)
    found = sorted(set(re.findall(r"\.(sm_\w+)\.", listed.stdout)))
    if not found:
        raise ValueError(f"{library}: no GPU code that {program} lists")
    return found


def measured(library: Path, program: str) -> Used:
    """(architecture, kernel) -> registers, stack, local and shared bytes.

    Raises ValueError where there is nothing of an architecture that the module was compiled for.
    """
    dumped = subprocess.run([program, "-res-usage", library], capture_output=True, text=True, check=True)
    plain = subprocess.run(
        ["c++filt"], input=dumped.stdout + dumped.stderr, capture_output=True, text=True, check=True
    )
    found = parsed(plain.stdout)
    lacking = set(architectures(library, program)) - {architecture for architecture, _ in found}
    if lacking:
        raise ValueError(f"{library}: no kernels of {' '.join(sorted(lacking))} in what {program} prints")
    return found


def parsed(text: str) -> Used:
    """From what cuobjdump prints. Local memory is what a kernel spills, or keeps beside a stack."""
    found: Used = {}
    architecture, kernel = "", ""
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function (?:void )?mgg::(.*)\(", line):
            kernel = match[1].replace("mgg::", "")
        elif "Function" in line:
            kernel = ""  # the compiler's own
        elif kernel and (match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line)):
            registers, stack, shared, local = map(int, match.groups())
            found[architecture, kernel] = (registers, stack, local, shared)
            kernel = ""
    return found


def allowed() -> Used:
    """The committed table."""
    with TABLE.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found = {}
    for row in rows:
        each = [[int(word) for word in row[name].split()] for name in COLUMNS]
        values = [of * len(ARCHITECTURES) if len(of) == 1 else of for of in each]
        for architecture, used in zip(ARCHITECTURES, zip(*values, strict=True), strict=True):
            found[architecture, row["kernel"]] = used
    return found


def write(found: Used, compiler: str) -> None:
    """Write the table. Raises KeyError, and writes nothing, for a kernel that some architecture lacks."""
    rows = [("kernel", *COLUMNS)]
    for kernel in sorted({kernel for _, kernel in found}):
        values = zip(*(found[architecture, kernel] for architecture in ARCHITECTURES), strict=True)
        cells = (of[:1] if len(set(of)) == 1 else of for of in values)
        rows.append((kernel, *(" ".join(map(str, of)) for of in cells)))
    with TABLE.open("w", newline="") as file:
        file.write(f"# nvcc {compiler}\n# where they differ: {' '.join(ARCHITECTURES)}\n")
        csv.writer(file, lineterminator="\n").writerows(rows)


def same_compiler() -> bool:
    """Whether the module was compiled by the nvcc of the table: registers are that release's."""
    from mgg_hpc.runtime.backends.cuda import module as cuda_module

    return TABLE.read_text().splitlines()[0] == f"# nvcc {cuda_module.load().compiler()}"


def worse(found: Used, table: Used, *, registers: bool = True) -> list[str]:
    """What must not be: spills or a stack in a hot kernel, more than the table has, kernels that it has not.

    registers: compare these too.
    """
    said = []
    for (architecture, kernel), used in found.items():
        name = f"{architecture} {kernel}"
        if not NOT_HOT.match(kernel) and (used[1] or used[2]):
            said.append(f"{name}: {used[1]} bytes of stack and {used[2]} of local memory")
        was = table.get((architecture, kernel))
        if was is None:
            said.append(f"{name} is not in {TABLE.name}")
            continue
        columns = list(zip(COLUMNS, used, was, strict=True))[0 if registers else 1 :]
        said += [f"{name}: {now} {column}, was {before}" for column, now, before in columns if now > before]
    built = {architecture for architecture, _ in found}
    lost = sorted(key for key in table.keys() - found.keys() if key[0] in built)
    return said + [f"{' '.join(key)} is in {TABLE.name}, but not built" for key in lost]


def main(arguments: list[str]) -> int:
    """See above."""
    program, library = cuobjdump(), module()
    if program is None or library is None:
        print("needs cuobjdump and a built mgg_hpc/_cuda: make cuda", file=sys.stderr)
        return 2
    update, built = arguments == ["--update"], set(architectures(library, program))
    if built != set(ARCHITECTURES) if update else not built <= set(ARCHITECTURES):
        print(f"{TABLE.name} is for {ARCHITECTURES}, {library.name} for {sorted(built)}", file=sys.stderr)
        return 2
    found = measured(library, program)
    if update:
        from mgg_hpc.runtime.backends.cuda import module as cuda_module

        write(found, cuda_module.load().compiler())
        print(f"{len(found)} kernels in {TABLE}")
        return 0
    problems = worse(found, allowed(), registers=same_compiler())
    print("\n".join(problems) or f"{len(found)} kernels as in {TABLE.name}, or better")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
