"""Run one benchmark of a GPU: `mgg bench ... --device cuda`, or a study, with the options of `make gpu-bench`.

Over the shim sizes are tiny, and figures say nothing but that the programs work.

    python tests/gpu/bench.py aggregate --json aggregate.json
    python tests/gpu/bench.py overlap --device shim --library FOLDER/_cuda.so --json overlap.json

A table is written beside the JSON. Each cell (a graph, its types and a width) is printed before
it is measured, and ends this program with the stacks of its threads where it does not end in time. Exit code 0:
measured; 2: there is no GPU, or something is wrong; 3: there is no ncu, or it may not read the GPU's counters.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

from gpu import result
from gpu.pes.engine import Engine
from gpu.pes.shim_device import shim_device
from mgg_hpc.bench_verbs import bench
from mgg_hpc.errors import InputError
from mgg_hpc.runtime.backends.cuda import module
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.study_verb import study
from mgg_hpc.tools.bench.epoch import gpu as epoch_gpu
from mgg_hpc.tools.bench.epoch.gpu_memory import Held
from mgg_hpc.tools.bench.harness import document, watch
from mgg_hpc.tools.bench.harness.gpu import Device
from mgg_hpc.tools.bench.harness.options import BenchOptions
from mgg_hpc.tools.study import table

GPU_TURNS, SHIM_TURNS = 9, 2
CELL_SECONDS = 60.0  # a cell that takes longer hangs


@dataclass(frozen=True)
class Bench:
    """Words after `mgg bench`, or `mgg study`: what is measured everywhere, on a GPU, and over the shim."""

    words: str
    gpu: str = ""
    shim: str = ""
    device: bool = True
    turns: int = GPU_TURNS  # 0: it takes no turns
    cell_seconds: float = CELL_SECONDS
    study: bool = False


TINY_GRAPHS = "rmat:6:4 uniform:5"
BENCHES = {
    "aggregate": Bench("aggregate", "rmat:20:16 uniform:20:16 {real}", f"{TINY_GRAPHS} --widths 16,64"),
    "aggregate-one": Bench(
        "aggregate", "rmat:20:16 --widths 128,16 --peers cusparse", "rmat:6:4 --widths 16 --peers torch"
    ),
    "half-rows": Bench(
        "aggregate --dtypes float32,bfloat16,float16 --peers cusparse --transfers direct",
        "rmat:20:16 uniform:20:16 {real} --widths 64,128,256",
        f"{TINY_GRAPHS} --widths 64,128",
    ),
    "overlap": Bench("overlap", shim="uniform:6:4 --width 33 --shares 0,0.2,0.5"),
    "epoch": Bench("epoch", shim="rmat:6:4 --features 12 --hidden 5 --classes 7"),
    "huge": Bench(
        # Its plan is made on the host.
        "huge",
        shim="--rows 300 --edges 6000 --features 12 --width 5",
        cell_seconds=120.0,
    ),
    # What training takes before its first epoch; over the shim, on the CPU.
    "start": Bench(
        "start", "--backend cuda", "rmat:6:8 --backend serial", device=False, turns=3, cell_seconds=120.0
    ),
    "traversal": Bench(
        "traversal",
        "rmat:22:16 uniform:22:16 {real} --sources 8",
        "rmat:6:4 --sources 1",
        turns=0,
        study=True,
    ),
}


class NoMemory:
    """A meter for what takes no memory of a GPU."""

    def held(self) -> Held:
        return Held(0, 0)

    def peak(self, before: Held, call: Callable[[], object]) -> dict[str, int]:
        call()
        return {"tensors": 0, "outside": 0}


@contextlib.contextmanager
def shim(library: Path, seed: int) -> Iterator[None]:
    """Put the shim in the place of the GPU."""
    engine = Engine.shim(library)
    device = shim_device(engine, seed)
    Device.current = lambda: device  # type: ignore[method-assign]
    module.load, module.need_device = lambda: engine.module, lambda _: 1
    cuda_rank.hardware = lambda: (engine.module, engine.arrays)
    epoch_gpu.GpuMemory = NoMemory
    yield


def run_study(asked: list[str], json_file: Path | None) -> None:
    """Run a study, and write its rows as documents of benchmarks are written."""
    with tempfile.TemporaryDirectory(prefix="mgg-study-") as folder:
        csv = Path(folder) / "rows.csv"
        study.main([*asked, f"--csv={csv}", "--plot=none"], standalone_mode=False)
        rows = table.read(csv)
    options = BenchOptions(turns=0, json=json_file, table=json_file and json_file.with_suffix(".md"))
    found = document.begin(asked[0], options, Device.current()) | {"rows": rows}
    columns = list(dict.fromkeys(name for row in rows for name in row if name not in ("study", "device")))
    cells = [[str(row.get(name, "")) for name in columns] for row in rows]
    sheet = document.Sheet("searches", [name.replace("_", " ") for name in columns], cells)
    document.write(found, [sheet], options)


def main(words: list[str]) -> int:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", choices=tuple(BENCHES))
    parser.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    parser.add_argument("--library", type=Path, help="a _cuda that was built for the shim")
    parser.add_argument(
        "--turns", type=int, help=f"of each worker [default: {GPU_TURNS} or less, over the shim {SHIM_TURNS}]"
    )
    parser.add_argument("--case-seconds", type=float, help="a cell that takes longer hangs")
    parser.add_argument("--seed", type=int, default=0, help="of the shim's order of execution")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    on_shim, chosen = given.device == "shim", BENCHES[given.bench]
    if on_shim and not given.library:
        parser.error("--device shim needs --library")
    # cnr_2000 (a web graph), where MGG_DATA names a folder that has it.
    real = Path(os.environ.get("MGG_DATA", "")) / "cnr_2000" / "cnr_2000.npz"
    asked = [*chosen.words.split(), *(chosen.shim if on_shim else chosen.gpu).split()]
    asked = [word.format(real=real) for word in asked if word != "{real}" or real.is_file()]
    asked += ["--device=cuda"] if chosen.device else []
    asked += [f"--turns={given.turns or (SHIM_TURNS if on_shim else chosen.turns)}"] if chosen.turns else []
    if given.json and not chosen.study:
        asked += [f"--json={given.json}", f"--table={given.json.with_suffix('.md')}"]
    seconds = result.case_seconds(given, chosen.cell_seconds)
    watch.Watched.over = lambda name: result.case(name, seconds)
    try:
        with shim(given.library, given.seed) if on_shim else contextlib.nullcontext():
            if chosen.study:
                run_study(asked, given.json)
            else:
                bench.main(asked, standalone_mode=False)
    except InputError as error:
        print(f"gpu-bench: {error}", file=sys.stderr)
        return 3 if str(error).startswith(("ncu is not on PATH", "ncu may not read")) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
