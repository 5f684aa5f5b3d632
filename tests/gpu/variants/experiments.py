"""First experiments on a GPU: changes of a line, a flag or a constant, each timed in turns with what stands.

    python tests/gpu/variants/experiments.py                        # all, in about ten minutes with 16 cores
    python tests/gpu/variants/experiments.py no-allocate claims-1   # these

After prepare.py. Each change of a kernel is built into a module of its own in BUILD/experiments; then `mgg bench
aggregate` runs in processes in turns, without and with the change. A line for each change is printed as
docs/gpu-tuning.md has it, and what each process measured stays beside the module. Exit code 2: something is wrong; 1: a
build or a benchmark failed, and the others were measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[3]))

from gpu import bench, prepare
from gpu.pes.engine import Engine
from gpu.variants.edits import Edit, copy_sources, edited
from mgg_hpc.bench_verbs import bench as command
from mgg_hpc.runtime.backends.cuda import halo, module
from mgg_hpc.tools.bench.aggregate.summary import OURS

GRAPHS = ("rmat:20:16", "uniform:20:16")
WORDS = ("aggregate", "--device=cuda", "--peers=none", "--widths=128,16", "--turns=5")
UNCHANGED = "unchanged"
DEVICE, SUM, ROWS = "runtime/device.h", "gpu/sums/aggregate.cuh", "gpu/row_worker.cuh"


@dataclass(frozen=True)
class Experiment:
    """A change, and what counts say that it should do.

    edits, flags: of the kernels' sources, and for nvcc. constants: of mgg_hpc/runtime/backends/cuda/halo.py.
    transfers: whose sums it may change.
    """

    what: str
    expected: str
    edits: tuple[Edit, ...] = ()
    flags: str = ""
    constants: Mapping[str, float] = field(default_factory=dict)
    transfers: str = "direct"

    @property
    def builds(self) -> bool:
        """Whether it needs a module of its own."""
        return bool(self.edits or self.flags)


EXPERIMENTS = {
    "registers-64": Experiment(
        "at most 64 registers a thread",
        "direct on local rows takes 66 registers, 28 warps a multiprocessor; at 64 it fits without a spill, 32 warps: "
        "up to 1.14 times the loads under way, nothing where bandwidth is the limit; kernels that read remote rows or "
        "hold two packs a lane spill 124 to 660 bytes and get slower",
        flags="-maxrregcount=64",
    ),
    "unroll-8": Experiment(
        "eight rows under way to registers in place of four",
        "twice the bytes under way a warp, at 92 registers 20 warps in place of 28: 1.4 times the bytes under way "
        "where tasks are long (rmat); at 16 columns most end before eight rows, and rows are read again for nothing",
        (Edit(ROWS, "constexpr int unroll = 4;", "constexpr int unroll = 8;"),),
    ),
    "no-allocate": Experiment(
        "rows do not stay in the first cache (L1::no_allocate)",
        "of 256 KB a multiprocessor few rows are read twice by one block: at most 2 percent either way on uniform; "
        "slower on rmat if hubs' rows are found there",
        (Edit(DEVICE, "ld.global.nc.v4.b32", "ld.global.nc.L1::no_allocate.v4.b32"),),
    ),
    "streaming-stores": Experiment(
        "sums are stored as streams (st.global.cs), out of the way of rows in the second cache",
        "outputs are a sixteenth of what is read at 16 edges a node: up to 6 percent more of the cache for rows",
        (Edit(DEVICE, "st.global.v4.b32 [%0]", "st.global.cs.v4.b32 [%0]"),),
    ),
    "no-prefetch": Experiment(
        "the next task is not prefetched",
        "slower by the latency of one load a task: most at 16 columns, where a task is a few loads long",
        (Edit(SUM, "    self.prefetch(number + self.worker.workers());\n", ""),),
    ),
    "claims-1": Experiment(
        "a halo claims as many tasks as a warp has workers, and no more",
        "up to 16 times the atomics on one address: slower by about a microsecond for each thousand of them",
        constants={"MOST_CLAIMED": 1},
        transfers="direct,halo",
    ),
    "all-claimed": Experiment(
        "a halo claims all tasks; none are shared out before",
        "four times the atomics for a better balance: less than 2 percent either way",
        constants={"SHARED_OUT": 0.0},
        transfers="direct,halo",
    ),
}


def measure(name: str, library: Path | None, words: Sequence[str], *, on_shim: bool = False) -> None:
    """Run a benchmark in this process with a change: with its module, and its constants."""
    for constant, value in EXPERIMENTS[name].constants.items() if name != UNCHANGED else ():
        if not hasattr(halo, constant):
            raise AttributeError(f"{halo.__name__} has no {constant}")
        setattr(halo, constant, value)
    with bench.shim(library, 0) if library and on_shim else contextlib.nullcontext():
        if library and not on_shim:
            native = Engine.gpu(library).module
            module.load = lambda: native
        command.main(list(words), standalone_mode=False)


def build(name: str, folder: Path, environment: dict[str, str]) -> Path | None:
    """Build a change's module. Returns None where it needs none. Raises RuntimeError with what the build said."""
    experiment = EXPERIMENTS[name]
    if not experiment.builds:
        return None
    copy_sources(folder / "source", edited(experiment.edits))
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DMGG_CUDA=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    options += [f"-DCMAKE_CUDA_ARCHITECTURES={prepare.architecture()}"]
    options += [f"-DCMAKE_CUDA_FLAGS={experiment.flags}"] if experiment.flags else []
    if said := prepare.compile(folder / "source", folder / "tree", options, ["_cuda"], environment):
        raise RuntimeError(said)
    return folder / "tree" / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"


def times(document: Path) -> dict[str, float]:
    """Return the median milliseconds of our sums in a document of the benchmark, by graph, width and transfer."""
    return {
        f"{case['graph']} {case['width']} {transfer}": case["ms"][name]["median"]
        for case in json.loads(document.read_text())["cases"]
        for transfer, name in OURS.items()
        if name in case["ms"]
    }


def compare(
    name: str, libraries: Mapping[str, Path], folder: Path, turns: int, words: Sequence[str], *more: str
) -> dict[str, float]:
    """Time what stands and a change in turns, a process each. Returns its time over ours, by what `times` names.

    libraries: modules in place of the package's, by UNCHANGED and the change's name. more: of this program's options.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(turns):
        for which in (UNCHANGED, name):
            document = folder / f"{which}-{turn}.json"
            asked = [sys.executable, __file__, "--measure", which, *more]
            asked += ["--library", str(libraries[which])] if which in libraries else []
            subprocess.run(
                [*asked, "--", *words, f"--json={document}"], check=True, stdout=subprocess.DEVNULL
            )
            for cell, ms in times(document).items():
                found[cell][which].append(ms)
    return {
        cell: statistics.median(each[name]) / statistics.median(each[UNCHANGED])
        for cell, each in found.items()
    }


def main(words: list[str] | None = None) -> int:
    """Run experiments; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)} [default: all]"
    )
    parser.add_argument("--build", type=Path, default=Path("build/gpu"), help="prepare.py's folder")
    parser.add_argument(
        "--turns", type=int, default=3, help="processes without and with each change [default: 3]"
    )
    parser.add_argument("--measure", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shim", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.measure:
        measure(given.measure, given.library, given.names, on_shim=given.shim)
        return 0
    if unknown := [name for name in given.names if name not in EXPERIMENTS]:
        parser.error(f"no experiment {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    if prepare.architecture() is None:
        print("gpu-experiments: no GPU: nvidia-smi finds none", file=sys.stderr)
        return 2
    failed = 0
    environment = prepare.environment_of(given.build.resolve())
    for name in given.names or EXPERIMENTS:
        folder = given.build.resolve() / "experiments" / name
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{name}: {EXPERIMENTS[name].what} ...", flush=True)
        words = [*WORDS, *GRAPHS, f"--transfers={EXPERIMENTS[name].transfers}"]
        try:
            library = build(name, folder, environment)
            libraries = {name: library} if library else {}
            found = compare(name, libraries, folder, given.turns, words)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
            continue
        came = "; ".join(f"{cell} {over:.3f}" for cell, over in found.items())
        print(f"| {EXPERIMENTS[name].what} | {EXPERIMENTS[name].expected} | {came} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
