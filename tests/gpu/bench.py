"""Run benchmarks of a GPU: `mgg bench ... --device cuda`, or a study, with the options of `make gpu-bench`.

    python tests/gpu/bench.py --results build/gpu/results                       those that have no result yet
    python tests/gpu/bench.py aggregate overlap --results build/gpu/results     these, again
    python tests/gpu/bench.py --device shim --results build/shim/results        tiny ones, over the shim

Each is a process of its own, which ends where a cell (a graph, its types and a width; a setting) takes
longer than it may: NAME.log names the cell, with the stacks of all threads. NAME.json and NAME.md are what it measured,
NAME.partial.json where it did not end. Exit code 0: all were measured; 1: some failed; 3: some were left for lack of
time.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import programs

from gpu.pes.engine import Engine
from gpu.pes.shim_device import shim_device
from mgg_hpc.cli.bench import bench
from mgg_hpc.cli.study import study
from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda import module
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.tools.bench.epoch import gpu as epoch_gpu
from mgg_hpc.tools.bench.epoch.gpu_memory import Held
from mgg_hpc.tools.bench.harness import document, watch
from mgg_hpc.tools.bench.harness.gpu import Device
from mgg_hpc.tools.bench.harness.options import BenchOptions
from mgg_hpc.tools.study import table

GPU_TURNS, SHIM_TURNS = 9, 2
SECONDS = 540.0  # of all; others are left for the next call
CELL_SECONDS = 60.0  # a cell that takes longer hangs
CONTACT = "aggregate-one"  # which `make gpu-contact` runs


@dataclass(frozen=True)
class Bench:
    """Words after `mgg bench`, or `mgg study`: what is measured everywhere, on a GPU, and over the shim.

    expected: seconds. turns: 0 where it takes no turns.
    """

    words: str
    gpu: str = ""
    shim: str = ""
    expected: float = 60.0
    turns: int = GPU_TURNS
    cell_seconds: float = CELL_SECONDS


TINY_GRAPHS = "rmat:6:4 uniform:5"
REAL = "rmat:20:16 uniform:20:16 {real}"
ON_GPU = "--device cuda"
BENCHES = {
    "aggregate": Bench(f"aggregate {ON_GPU}", REAL, f"{TINY_GRAPHS} --widths 16,64"),
    CONTACT: Bench(
        f"aggregate {ON_GPU}",
        "rmat:20:16 --widths 128,16 --peers cusparse",
        "rmat:6:4 --widths 16 --peers torch",
    ),
    "half-rows": Bench(
        f"aggregate {ON_GPU} --dtypes float32,bfloat16,float16 --peers cusparse --transfers direct",
        f"{REAL} --widths 64,128,256",
        f"{TINY_GRAPHS} --widths 64,128",
    ),
    "overlap": Bench(f"overlap {ON_GPU}", shim="uniform:6:4 --width 33 --shares 0,0.2,0.5", expected=90),
    "epoch": Bench(f"epoch {ON_GPU}", shim="rmat:6:4 --features 12 --hidden 5 --classes 7"),
    "design-space": Bench(
        f"study design-space {ON_GPU} --transfer get",
        "uniform:20:16 --width 128",
        "rmat:4:4 --width 5 --turns 1",
        130,
        0,
    ),
    # Its plan is made on the host.
    "huge": Bench(f"huge {ON_GPU}", shim="--rows 300 --edges 6000 --features 12 --width 5", cell_seconds=120),
    # What training takes before its first epoch; over the shim, on the CPU.
    "start": Bench("start", "--backend cuda", "rmat:6:8 --backend serial", 90, 3, 120),
    "traversal": Bench(
        f"study traversal {ON_GPU}",
        "rmat:22:16 uniform:22:16 {real} --sources 8",
        "rmat:6:4 --sources 1",
        turns=0,
    ),
}
DRAWN = ("aggregate", "half-rows", "overlap", "epoch")


class NoMemory:
    """A meter for what takes no memory of a GPU."""

    def held(self) -> Held:
        return Held(0, 0)

    def peak(self, before: Held, call: Callable[[], object]) -> dict[str, int]:
        call()
        return {"tensors": 0, "outside": 0}


def put_shim() -> None:
    """Put the shim in the place of the GPU."""
    from builds import made

    engine = Engine.shim(made("shim") / "_cuda.so")
    device = shim_device(engine)
    Device.current = lambda: device  # type: ignore[method-assign]
    module.load, module.need_device = lambda: engine.module, lambda _: 1
    cuda_rank.hardware = lambda: (engine.module, engine.arrays)
    epoch_gpu.GpuMemory = NoMemory


@contextlib.contextmanager
def watched(name: str, seconds: float) -> Iterator[None]:
    """Print a cell before it is measured; end this process with the stacks of its threads where it does not end."""
    print(f"cell: {name}", flush=True)
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def words_of(name: str, json_file: Path, *, on_shim: bool) -> list[str]:
    """Return the words of a benchmark."""
    chosen = BENCHES[name]
    # cnr_2000 (a web graph), where MGG_DATA names a folder that has it.
    real = Path(os.environ.get("MGG_DATA", "")) / "cnr_2000" / "cnr_2000.npz"
    asked = [*chosen.words.split(), *(chosen.shim if on_shim else chosen.gpu).split()]
    asked = [word.format(real=real) for word in asked if word != "{real}" or real.is_file()]
    if asked[0] == "study":
        return asked
    asked += [f"--turns={SHIM_TURNS if on_shim else chosen.turns}"] if chosen.turns else []
    asked += [f"--plot={json_file.with_suffix('.svg')}"] if name in DRAWN and find_spec("matplotlib") else []
    return [*asked, f"--json={json_file}", f"--table={json_file.with_suffix('.md')}"]


def run_study(asked: list[str], json_file: Path) -> None:
    """Run a study, and write its rows as documents of benchmarks are written."""
    with tempfile.TemporaryDirectory(prefix="mgg-study-") as folder:
        csv = Path(folder) / "rows.csv"
        study.main([*asked, f"--csv={csv}", "--plot=none"], standalone_mode=False)
        rows = table.read(csv)
    options = BenchOptions(turns=0, json=json_file, table=json_file.with_suffix(".md"))
    found = document.begin(asked[0], options, Device.current()) | {"rows": rows}
    columns = list(dict.fromkeys(name for row in rows for name in row if name not in ("study", "device")))
    cells = [[str(row.get(name, "")) for name in columns] for row in rows]
    document.write(
        found, [document.Sheet(asked[0], [name.replace("_", " ") for name in columns], cells)], options
    )


def measure(name: str, json_file: Path, *, on_shim: bool) -> int:
    """Run one benchmark in this process."""
    seconds = BENCHES[name].cell_seconds * (4 if on_shim else 1)
    watch.Watched.over = lambda cell: watched(cell, seconds)
    if on_shim:
        put_shim()
    asked = words_of(name, json_file, on_shim=on_shim)
    try:
        run_study(asked[1:], json_file) if asked[0] == "study" else bench.main(asked, standalone_mode=False)
    except InputError as error:
        print(f"gpu-bench: {error}", file=sys.stderr)
        return 2
    return 0


def run(name: str, results: Path, device: str, seconds: float) -> bool:
    """Run one benchmark in a process of its own, and print how it ended. Return whether it measured everything."""
    partial, log = results / f"{name}.partial.json", results / f"{name}.log"
    words = [sys.executable, __file__, "--measure", name, "--results", results, "--device", device]
    began = time.monotonic()
    try:
        done = programs.run_limited(*words, seconds=seconds)
        code, said = done.returncode, f"{done.stdout}\n{done.stderr}"
    except subprocess.TimeoutExpired as error:
        code, said = -1, f"{error.output}\ndid not end within {seconds:.0f} s"
    log.write_text(said)
    if code == 0:
        for path in results.glob(f"{name}.partial.*"):
            path.rename(path.with_name(path.name.replace(".partial", "")))
    cells = [line for line in said.splitlines() if line.startswith("cell: ")]
    last = (said.strip().splitlines() or ["nothing was said"])[-1]
    why = "" if code == 0 else f": {last if code == 2 else cells[-1:]} ({log})"
    print(
        f"{name}: {'measured' if code == 0 else 'failed'}, {time.monotonic() - began:.0f} s{why}", flush=True
    )
    return code == 0 and not partial.exists()


def main(words: list[str]) -> int:
    """See above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    parser.add_argument("--results", type=Path, default=Path("build/gpu/results"))
    parser.add_argument("--until", type=float, help=f"seconds since the epoch [default: in {SECONDS:.0f} s]")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if unknown := [name for name in given.names if name not in BENCHES]:
        parser.error(f"no benchmark {unknown[0]!r}; expected {', '.join(BENCHES)}")
    given.results.mkdir(parents=True, exist_ok=True)
    if given.measure:
        (name,) = given.names
        return measure(name, given.results / f"{name}.partial.json", on_shim=given.device == "shim")
    until = given.until or time.time() + SECONDS
    absent = [name for name in BENCHES if name != CONTACT and not (given.results / f"{name}.json").exists()]
    failed, left = False, []
    for name in given.names or absent:
        if time.time() + BENCHES[name].expected > until:
            left.append(name)
        elif not run(name, given.results, given.device, max(1.0, until + 20 - time.time())):
            failed = True
    if left:
        print(f"gpu-bench: not run for lack of time: {', '.join(left)}; run the same again", file=sys.stderr)
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
