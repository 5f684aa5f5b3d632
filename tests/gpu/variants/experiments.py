"""First experiments on a GPU: changes of a line, a flag or a constant, each timed in turns with what stands.

    python tests/gpu/variants/experiments.py                        # all, in calls of at most nine minutes
    python tests/gpu/variants/experiments.py no-allocate claims-1   # these

After prepare.py. Each change of a kernel is built into a module of its own in BUILD/experiments; then `mgg bench
aggregate` runs in processes in turns, without and with the change. A line for each change is printed as
docs/gpu-tuning.md has it, and kept in BUILD/results, which the archive of results holds: what has a line is not run
again while neither its sources nor the GPU change. What each process measured stays beside the module. Exit code 3:
some were left for the next call; 2: something is wrong; 1: a build or a benchmark failed, the others were measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[3]))

import programs

from gpu import accept, archive, bench, parts, prepare, result
from gpu.pes.engine import Engine
from gpu.variants.edits import Edit, copy_sources, edited
from mgg_hpc.bench_verbs import bench as command
from mgg_hpc.runtime.backends.cuda import module
from mgg_hpc.runtime.backends.cuda.transfers import halo
from mgg_hpc.tools.bench.aggregate.summary import OURS

GRAPHS = ("rmat:20:16", "uniform:20:16")
WORDS = ("aggregate", "--device=cuda", "--peers=none", "--widths=128,16", "--turns=5")
UNCHANGED = "unchanged"
SECONDS = 540.0  # of all; others are left for the next call
EXPECTED = {True: 150.0, False: 75.0}  # seconds of an experiment that builds, and of one that does not
DEVICE, SUM, ROWS = "runtime/device.h", "gpu/sums/aggregate.cuh", "gpu/row_worker.cuh"


@dataclass(frozen=True)
class Experiment:
    """A change, and what counts say that it should do.

    edits, flags: of the kernels' sources, and for nvcc. constants: of mgg_hpc/runtime/backends/cuda/transfers/halo.py.
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
        "direct on local rows takes 70 registers, three blocks of eight warps a multiprocessor; at 64 four fit: "
        "up to 1.33 times the loads under way, nothing where bandwidth is the limit; kernels that read remote rows or "
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


def build(name: str, folder: Path, environment: dict[str, str], until: float) -> Path | None:
    """Build a change's module. Returns None where it needs none. Raises RuntimeError with what the build said.

    until: by `time.monotonic`; subprocess.TimeoutExpired is raised then.
    """
    experiment = EXPERIMENTS[name]
    if not experiment.builds:
        return None
    copy_sources(folder / "source", edited(experiment.edits))
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DMGG_CUDA=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    options += [f"-DCMAKE_CUDA_ARCHITECTURES={prepare.architecture()}"]
    options += [f"-DCMAKE_CUDA_FLAGS={experiment.flags}"] if experiment.flags else []
    run = partial(programs.run_limited, seconds=max(1.0, until - time.monotonic()))
    if said := prepare.compile(folder / "source", folder / "tree", options, ["_cuda"], environment, run):
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
    name: str,
    libraries: Mapping[str, Path],
    folder: Path,
    turns: int,
    words: Sequence[str],
    *more: str,
    until: float = math.inf,
) -> dict[str, float]:
    """Time what stands and a change in turns, a process each. Returns its time over ours, by what `times` names.

    libraries: modules in place of the package's, by UNCHANGED and the change's name. more: of this program's options.
    until: see `build`. Raises RuntimeError where a process fails.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(turns):
        for which in (UNCHANGED, name):
            document = folder / f"{which}-{turn}.json"
            asked = [sys.executable, __file__, "--measure", which, *more]
            asked += ["--library", str(libraries[which])] if which in libraries else []
            left = min(3600.0, max(1.0, until - time.monotonic()))
            done = programs.run_limited(*asked, "--", *words, f"--json={document}", seconds=left)
            if done.returncode:
                raise RuntimeError(f"{which} ended with {done.returncode}: {done.stderr[-2000:]}")
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
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all; others are left")
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
    return run(given, Kept(given.build.resolve() / "results", Engine.gpu().about()))


class Kept:
    """The lines that experiments have, in a folder of results, and on which GPU."""

    def __init__(self, results: Path, about: dict[str, Any]) -> None:
        self.results, self.about = results, about
        results.mkdir(parents=True, exist_ok=True)
        self.file = results / "experiments.json"
        self.lines: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.lines = json.loads(self.file.read_text())["experiments"]

    def fingerprint(self, name: str) -> str:
        """Of the GPU, and of what is measured: the benchmark's sources, and those of the experiments."""
        sources = (*parts.bench("aggregate", None, 0).sources, "tests/gpu/variants")
        return accept.fingerprint(parts.Part(name, (name,), 0, 0, sources), self.about)

    def has(self, name: str) -> bool:
        """Whether there is a line of today's sources and this GPU."""
        return self.lines.get(name, {}).get("fingerprint") == self.fingerprint(name)

    def add(self, name: str, over: dict[str, float]) -> str:
        """Keep a line, write all of them, and return it as docs/gpu-tuning.md has it."""
        self.lines[name] = {"over": over, "fingerprint": self.fingerprint(name)}
        result.write_json(
            self.file, "mgg-gpu-experiments", {"machine": self.about, "experiments": self.lines}
        )
        table = ["| change | expected | came |", "|---|---|---|", *map(self.line, self.lines)]
        self.file.with_suffix(".md").write_text("\n".join(["# First experiments", "", *table]) + "\n")
        archive.write(self.results)
        return self.line(name)

    def line(self, name: str) -> str:
        """Return an experiment's line."""
        came = "; ".join(f"{cell} {over:.3f}" for cell, over in self.lines[name]["over"].items())
        return f"| {EXPERIMENTS[name].what} | {EXPERIMENTS[name].expected} | {came} |"


def run(given: argparse.Namespace, kept: Kept) -> int:
    """Run the experiments that are asked for and have no line yet, as far as there is time; returns the exit code."""
    until = time.monotonic() + given.seconds
    environment = prepare.environment_of(given.build.resolve())
    failed, left_over = False, []
    for name in given.names or EXPERIMENTS:
        experiment, folder = EXPERIMENTS[name], given.build.resolve() / "experiments" / name
        if kept.has(name):
            print(kept.line(name))
            continue
        if until - time.monotonic() < EXPECTED[experiment.builds]:
            left_over.append(name)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{name}: {experiment.what} ...", flush=True)
        words = [*WORDS, *GRAPHS, f"--transfers={experiment.transfers}"]
        try:
            library = build(name, folder, environment, until)
            libraries = {name: library} if library else {}
            found = compare(name, libraries, folder, given.turns, words, until=until)
        except subprocess.TimeoutExpired:
            left_over.append(name)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
        else:
            print(kept.add(name, found), flush=True)
    if left_over:
        print(f"not run for lack of time: {', '.join(left_over)}; run the same again", file=sys.stderr)
    return 1 if failed else 3 if left_over else 0


if __name__ == "__main__":
    sys.exit(main())
