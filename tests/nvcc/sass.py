"""The machine code (SASS) of GPU kernels: what no source shows and no test over the shim can see.

python tests/nvcc/sass.py [ARCHITECTURE]     prints what is wrong in mgg_hpc/_cuda, for all it has or for one

Three rules, for every kernel of the project:

- `written`: no load of 16 bytes through the read-only cache (LDG...128.CONSTANT) has an address that was computed from
  a pointer whose memory the kernel, or a peer, writes while the kernel runs (WRITTEN). That cache is not coherent: such
  a load may return what was there before. Rows of other PEs that `direct` and `get` read through pointers stay as they
  are during a kernel, and so do the staged rows that over_edges reads, so these may be CONSTANT; the staging of `halo`
  may not, nor what `get` stages of PEs that no pointer reaches.
- `ahead`: in every innermost loop that loads rows, 16 bytes at once (LDG...128, CONSTANT or past the first cache), at
  least four loads are under way at once, before the first of them is used. Of over_edges one such loop will do: the
  other passes of a dot product over a wide head load row after row. Copies to shared memory are not loads of this
  kind: a thread does not wait for them.
- `local`: no local memory (LDL, STL), but for the kernels that call NVSHMEM.

Addresses are followed from the parameters, through registers, over all paths; a value that is loaded from memory, or
was multiplied or shifted, belongs to no pointer. So that a pointer which is lost on the way does not pass for a good
one, kernels of `halo` must have at least four fresh loads from the staging, and those of `get` from theirs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from nvcc import resources

AHEAD = 4
PARAMETERS = {"sm_80": 0x160, "sm_90": 0x210, "sm_100": 0x380}  # where they begin in constant bank 0
# Pointers to memory that is written while the kernel runs: the struct of the kernel's parameter, and its members.
WRITTEN = {
    "aggregate_halo": (
        "DeviceHaloCall<float>",
        ("halo.staging", "halo.outbox", "halo.partial_sums", "halo.deferred", "sum.partials", "sum.out"),
    ),
    "aggregate_get": ("DeviceGetCall<float>", ("get.staging", "sum.partials", "sum.out")),
    "aggregate_direct": ("DeviceAggregation<float>", ("partials", "out")),
}
# Kernels that must have fresh loads of rows from one of them.
STAGED = {r"aggregate_halo<": "halo.staging", r"aggregate_get<.*, true>": "get.staging"}


@dataclass
class Instruction:
    """One line of SASS. `guard`: the predicate under which it is executed, or nothing."""

    guard: str
    opcode: str
    operands: list[str]
    target: int | None = None  # the index of the instruction that a branch goes to
    writes: list[str] = field(init=False)
    sources: list[str] = field(init=False)  # operands that it reads
    reads: list[str] = field(init=False)  # and their registers

    def __post_init__(self) -> None:
        self.writes, self.sources = written(self.opcode, self.operands)
        self.reads = [name for operand in self.sources for name in registers(operand)]
        # Only the project's own loads of rows have a cache policy.
        policy = "CONSTANT" in self.opcode or "STRONG.GPU" in self.opcode
        self.row_load = self.opcode.startswith("LDG") and ".128" in self.opcode and policy


Kernel = list[Instruction]
LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?\s*([\w.]+)\s*(.*?)\s*;")


def cuobjdump() -> str | None:
    """cuobjdump, if nvdisasm, which it calls, is there too."""
    program = resources.cuobjdump()
    return program if program and Path(program).with_name("nvdisasm").exists() else None


def kernels(file: Path, program: str, architecture: str) -> Iterator[tuple[str, Kernel]]:
    """The project's kernels in a module or cubin, by their names as resources.csv has them."""
    command = [program, "--dump-sass", "-arch", architecture, str(file)]
    variables = {**os.environ, "NVDISASM_PATH": str(Path(program).parent)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as dump,
        subprocess.Popen(["c++filt"], stdin=dump.stdout, stdout=subprocess.PIPE, text=True) as plain,
    ):
        assert dump.stdout is not None and plain.stdout is not None
        dump.stdout.close()
        name, lines = "", list[str]()
        for line in plain.stdout:
            if "Function : " in line:
                if name:
                    yield name, parsed(lines)
                match = re.search(r"Function : (?:void )?mgg::(.*)\(", line)
                name, lines = match[1].replace("mgg::", "") if match else "", []
            elif name:
                lines.append(line)
        if name:
            yield name, parsed(lines)
    if dump.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {dump.returncode}")


def parsed(lines: list[str]) -> Kernel:
    """The instructions of a kernel from the lines of its dump."""
    found: Kernel = []
    index: dict[int, int] = {}
    for line in lines:
        if match := LINE.match(line):
            index[int(match[1], 16)] = len(found)
            operands = [word.strip() for word in match[4].split(",")] if match[4] else []
            found.append(Instruction((match[2] or "").strip(), match[3], operands))
    for each in found:
        if each.opcode.startswith("BRX"):
            raise ValueError("a branch to a computed address: its kernel cannot be followed")
        if each.opcode.startswith("BRA"):
            each.target = index[int(re.sub(r"[^0-9a-fx]", "", each.operands[-1]), 16)]
    return found


# ---- control flow


def successors(kernel: Kernel, at: int) -> list[int]:
    """Where a thread may go from here. Behind a call it goes on."""
    each = kernel[at]
    after = [at + 1] if at + 1 < len(kernel) else []
    if each.target is not None:
        always = not each.guard and len(each.operands) == 1
        return [each.target] if always else [*after, each.target]
    ends = each.opcode.startswith(("EXIT", "RET", "KILL"))
    return [] if ends and not each.guard else after


def loops(kernel: Kernel, after: list[list[int]]) -> list[set[int]]:
    """The natural loop of each branch backwards, the smallest first."""
    before: list[list[int]] = [[] for _ in kernel]
    for at, places in enumerate(after):
        for to in places:
            before[to].append(at)
    found: dict[int, set[int]] = {}
    for at, each in enumerate(kernel):
        if each.target is None or each.target >= at:
            continue
        body, left = found.setdefault(each.target, {each.target}), [at]
        while left:
            if (now := left.pop()) not in body:
                body.add(now)
                left += before[now]
    return sorted(found.values(), key=len)


def written(opcode: str, operands: list[str]) -> tuple[list[str], list[str]]:
    """The registers that an instruction writes, and the operands that it reads."""
    base = opcode.split(".", maxsplit=1)[0]
    if base.endswith("SETP") or base in ("ST", "STG", "STS", "STL", "RED", "REDG", "R2P", "BAR", "BRA"):
        return [], operands
    for at, operand in enumerate(operands):
        if match := re.fullmatch(r"(U?R)(\d+|Z)(\.reuse)?", operand):
            if match[2] == "Z":
                return [], operands[at + 1 :]
            sizes = {".128": 4, ".64": 2, ".WIDE": 2}
            count = next((many for name, many in sizes.items() if name in opcode), 1)
            return [f"{match[1]}{int(match[2]) + i}" for i in range(count)], operands[at + 1 :]
        if not re.fullmatch(r"!?U?P(\d|T)", operand):
            break
    return [], operands


def registers(operand: str) -> list[str]:
    return re.findall(r"\bU?R\d+", operand)


# ---- the rules


def most_ahead(kernel: Kernel, after: list[list[int]], start: int, body: set[int]) -> int:
    """Loads of rows that are under way at once, from `start` on, in this loop: on the path where they are most."""
    most = 0
    # Where each is, the registers of each load, and the branches met.
    paths: list[tuple[int, tuple[frozenset[str], ...], frozenset[int]]] = [(start, (), frozenset())]
    for _ in range(4000):
        if not paths or most >= AHEAD:
            break
        at, under_way, turns = paths.pop()
        each = kernel[at]
        under_way = tuple(load for load in under_way if not load.intersection(each.reads))
        if each.row_load:
            under_way = (*under_way, frozenset(each.writes))
            most = max(most, len(under_way))
        if len(after[at]) > 1:
            if at in turns:
                continue
            turns |= {at}
        paths += [(to, under_way, turns) for to in reversed(after[at]) if to in body and to != start]
    return most


def too_few_ahead(kernel: Kernel, after: list[list[int]], *, one_will_do: bool) -> list[str]:
    """The rule `ahead`; one_will_do: for one of the loops."""
    inner: dict[int, list[int]] = {}
    bodies = loops(kernel, after)
    for at, each in enumerate(kernel):
        if each.row_load:
            which = next((i for i, body in enumerate(bodies) if at in body), None)
            if which is not None:
                inner.setdefault(which, []).append(at)
    most = [
        max(most_ahead(kernel, after, at, bodies[which]) for at in loads) for which, loads in inner.items()
    ]
    worst = max(most, default=AHEAD) if one_will_do else min(most, default=AHEAD)
    return [f"a loop that loads rows has {worst} under way at once, not {AHEAD}"] if worst < AHEAD else []


def carried(each: Instruction) -> list[str]:
    """The operands that a pointer comes through: not those that are multiplied, shifted or compared."""
    base, operands = each.opcode.split(".")[0], each.sources
    if base in (
        "MOV",
        "UMOV",
        "IADD3",
        "UIADD3",
        "IADD",
        "UIADD",
        "VIADD",
        "SEL",
        "USEL",
        "SHFL",
        "R2UR",
        "LDC",
    ):
        return operands
    if base in ("ULDC", "LDCU", "S2R", "VIADDMNMX"):
        return operands
    values = [word for word in operands if not re.fullmatch(r"!?U?P(\d|T)", word)]
    if base in ("IMAD", "UIMAD"):
        once = any(word in ("1", "0x1") for word in values[:2])
        return values if once else values[2:3]
    if base in ("LEA", "ULEA") and ".HI" not in each.opcode:
        return values[1:2]
    return []


def addresses(
    kernel: Kernel, after: list[list[int]], pointers: dict[int, int]
) -> Iterator[tuple[Instruction, int]]:
    """Each load of a row, and the pointers that its address was computed from, a bit each.

    pointers: where each lies in constant bank 0 -> its bit.
    """
    steps: list[tuple[list[tuple[str, int]], list[str]]] = []  # (register, its own bits), registers read
    for each in kernel:
        through = carried(each)
        places = [int(at, 16) for word in through for at in re.findall(r"c\[0x0\]\[(0x[0-9a-f]+)\]", word)]
        own = [
            (name, sum({bit for at in places for bit in [pointers.get((at + 4 * i) & ~7, 0)]}))
            for i, name in enumerate(each.writes)
        ]
        steps.append((own, [name for word in through for name in registers(word)]))

    # What was written under a predicate is that alone for what reads it under the same one: `same`, within a run of
    # instructions without branches.
    def held_by(at: int, names: list[str], held: dict[str, int], same: dict[tuple[str, str], int]) -> int:
        bits, guard = 0, kernel[at].guard
        for name in names:
            bits |= same.get((name, guard), held.get(name, 0))
        return bits

    def step(at: int, held: dict[str, int], same: dict[tuple[str, str], int]) -> None:
        own, through = steps[at]
        each = kernel[at]
        bits = held_by(at, through, held, same)
        for name, its in own:
            for key in [key for key in same if key[0] == name]:
                del same[key]
            if each.guard:
                same[name, each.guard] = bits | its
                held[name] = bits | its | held.get(name, 0)
            else:
                held[name] = bits | its
        for word in each.operands[:2]:
            if re.fullmatch(r"U?P\d", word):
                for key in [key for key in same if key[1].lstrip("@!") == word]:
                    del same[key]

    leaders = {0, *(to for places in after if len(places) > 1 for to in places)}
    leaders |= {each.target for each in kernel if each.target is not None}
    known: dict[int, dict[str, int]] = {0: {}}
    left = [0]
    while left:
        at = left.pop()
        held, same = dict(known[at]), dict[tuple[str, str], int]()
        step(at, held, same)
        while len(after[at]) == 1 and after[at][0] not in leaders:
            at = after[at][0]
            step(at, held, same)
        for to in after[at]:
            was = known.setdefault(to, {})
            more = {name: bits | was.get(name, 0) for name, bits in held.items() if bits & ~was.get(name, 0)}
            if more or not was:
                was.update(more or {"": 0})
                left.append(to)
    for leader, was in known.items():
        at, held, same = leader, dict(was), dict[tuple[str, str], int]()
        while True:
            each = kernel[at]
            if each.row_load:
                yield each, held_by(at, registers(each.operands[-1].split("][")[-1]), held, same)
            step(at, held, same)
            if len(after[at]) != 1 or after[at][0] in leaders:
                break
            at = after[at][0]


def offsets(compiler: str, folder: Path) -> dict[str, dict[str, int]]:
    """Return the offsets of the members of each kernel of WRITTEN, as the compiler lays them out."""
    lines = [
        f'  std::printf("{kernel} {member} %zu\\n", offsetof(mgg::{struct}, {member}));'
        for kernel, (struct, members) in WRITTEN.items()
        for member in members
    ]
    source = "\n".join(
        (
            "#include <cstddef>",
            "#include <cstdio>",
            '#include "gpu/edge_arguments.h"',
            "int main() {",
            *lines,
            "}",
        )
    )
    cuda = resources.ROOT / "cuda"
    made = folder / "offsets"
    command = [compiler, "-std=c++17", "-w", "-DMGG_SHIM", f"-I{cuda}", f"-I{cuda / 'include'}"]
    subprocess.run([*command, "-x", "c++", "-", "-o", made], input=source, text=True, check=True)
    said = subprocess.run([made], capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[str, int]] = {}
    for line in said.splitlines():
        kernel, member, offset = line.split()
        found.setdefault(kernel, {})[member] = int(offset)
    return found


def wrong(name: str, kernel: Kernel, architecture: str, members: dict[str, dict[str, int]]) -> list[str]:
    """What breaks a rule in one kernel."""
    said = []
    if not resources.NOT_HOT.match(name) and any(each.opcode.startswith(("LDL", "STL")) for each in kernel):
        said.append("local memory")
    after = [successors(kernel, at) for at in range(len(kernel))]
    said += too_few_ahead(kernel, after, one_will_do=name.startswith("over_edges"))
    offset = members.get(name.split("<", maxsplit=1)[0], {})
    names = list(offset)
    pointers = {PARAMETERS[architecture] + at: 1 << i for i, at in enumerate(offset.values())}
    fresh: dict[str, int] = {}
    for each, bits in addresses(kernel, after, pointers) if offset else ():
        for i, member in enumerate(names):
            if bits >> i & 1 and each.row_load and "CONSTANT" in each.opcode:
                said.append(f"{each.opcode} reads {member}, which is written meanwhile")
            elif bits >> i & 1 and each.row_load:
                fresh[member] = fresh.get(member, 0) + 1
    for pattern, member in STAGED.items():
        if re.match(pattern, name) and fresh.get(member, 0) < AHEAD:
            said.append(f"{fresh.get(member, 0)} fresh loads of rows from {member}, not {AHEAD}")
    return [f"{architecture} {name}: {what}" for what in sorted(set(said))]


def main(arguments: list[str]) -> int:
    """See above."""
    program, library, compiler = cuobjdump(), resources.module(), shutil.which("g++")
    if program is None or library is None or compiler is None:
        print("needs cuobjdump, nvdisasm, g++ and a built mgg_hpc/_cuda: make cuda", file=sys.stderr)
        return 2
    problems, count = list[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        members = offsets(compiler, Path(folder))
    chosen = arguments or resources.architectures(library, program)
    if unknown := set(chosen) - PARAMETERS.keys():
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(PARAMETERS)}", file=sys.stderr)
        return 2
    for architecture in chosen:
        for name, kernel in kernels(library, program, architecture):
            problems += wrong(name, kernel, architecture, members)
            count += 1
    print("\n".join(problems) or f"{count} kernels keep the rules")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
