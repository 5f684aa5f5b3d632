"""What a GPU reaches, a benchmark at a time: `mgg bench ... --device cuda` with the options of `make gpu-bench`, or the
same at tiny sizes over the shim, whose figures say nothing but that the programs work.

    python tests/gpu/bench.py aggregate --json aggregate.json
    python tests/gpu/bench.py sweep --device shim --library FOLDER/_cuda.so --json sweep.json

A table is written beside the JSON. Exit code 0: measured; 2: there is no GPU, or something is wrong; 3: there is no
ncu, or it may not read the GPU's counters.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import numpy as np

from gpu.pes.engine import Engine
from gpu.pes.stage import stage_of
from mgg_hpc.errors import InputError
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.tools.bench import startup
from mgg_hpc.tools.bench.aggregate import cpu as aggregate
from mgg_hpc.tools.bench.aggregate import gpu as device_aggregate
from mgg_hpc.tools.bench.epoch import cpu as epoch
from mgg_hpc.tools.bench.epoch import gpu as epoch_gpu
from mgg_hpc.tools.bench.epoch import gpu_memory
from mgg_hpc.tools.bench.harness import document
from mgg_hpc.tools.bench.harness.gpu import Stage
from mgg_hpc.tools.bench.huge import gpu as huge_gpu
from mgg_hpc.tools.bench.overlap import gpu as overlap_gpu
from mgg_hpc.tools.bench.profile import gpu as profile_gpu
from mgg_hpc.tools.bench.profile import launches
from mgg_hpc.tools.bench.sweep import gpu as sweep_gpu

TURNS = 9
PAPERS = (
    111_059_956,
    1_615_685_872,
    128,
    16,
)  # ogbn-papers100M's rows, edges and features; and the width of a layer
LAUNCHER = Path(__file__).parents[1] / "shim" / "bench" / "launch_child.py"


class NoMemory:
    """A meter for what takes no memory of a GPU."""

    def held(self) -> gpu_memory.Held:
        return gpu_memory.Held(0, 0)

    def peak(self, before: gpu_memory.Held, call: Callable[[], object]) -> dict[str, int]:
        call()
        return {"tensors": 0, "outside": 0}


def real_graphs() -> list[Path]:
    """cnr_2000 (a web graph), where MGG_DATA names a folder that has it."""
    path = Path(os.environ.get("MGG_DATA", "")) / "cnr_2000" / "cnr_2000.npz"
    return [path] if path.is_file() else []


@dataclass
class Bench:
    """Where benchmarks run: a stage of the shim's, or None for the GPU."""

    options: document.Options
    library: Path | None
    stage: Stage | None

    def sized(self, large: Any, tiny: Any) -> Any:
        """For a GPU, or for the shim."""
        return large if self.stage is None else tiny

    def aggregate(self) -> None:
        """Float32 rows, all transfers, all baselines."""
        self._aggregate(
            ["float32"], device_aggregate.WIDTHS, device_aggregate.BASELINES, list(device_aggregate.OURS)
        )

    def half_rows(self) -> None:
        """Half rows beside float32, against cuSPARSE."""
        self._aggregate(["float32", "bfloat16", "float16"], (64, 128, 256), ("cusparse",), ["direct"])

    def _aggregate(self, dtypes: list[str], widths: Any, baselines: Any, transfers: list[str]) -> None:
        device_aggregate.process_device(
            self.sized((*aggregate.GRAPHS_ON_GPU, *map(str, real_graphs())), ("rmat:6:4", "uniform:5")),
            self.sized(list(widths), list(widths)[:2]),
            dtypes,
            list(baselines),
            weighted=False,
            options=self.options,
            transfers=transfers,
            stage=self.stage,
        )

    def overlap(self) -> None:
        """Sums and transfers, together and apart, at growing shares of remote rows."""
        overlap_gpu.process_device_overlap(
            self.sized(overlap_gpu.GRAPH, "uniform:6:4"),
            width=self.sized(overlap_gpu.WIDTH, 33),
            shares=self.sized(overlap_gpu.SHARES, (0.0, 0.2, 0.5)),
            ways=overlap_gpu.WAYS,
            options=self.options,
            stage=self.stage,
        )

    def epoch(self) -> None:
        """A GCN's epoch and its layers, against PyG's."""
        epoch_gpu.process_device(
            self.sized(epoch.GRAPHS_ON_GPU, ("rmat:6:4",)),
            epoch.Shape(*self.sized((128, 16, 32), (12, 5, 7)), 0.5),
            epoch_gpu.BASELINES,
            self.options,
            self.stage,
            self.sized(None, NoMemory()),
        )

    def sweep(self) -> None:
        """ps, dist and wpb of all transfers, at 128 columns."""
        self._sweep(128)

    def sweep_narrow(self) -> None:
        """The same at 16."""
        self._sweep(16)

    def _sweep(self, width: int) -> None:
        sweep_gpu.process_sweep(
            self.sized(sweep_gpu.GRAPH, "rmat:6:8"),
            RowFormat(np.dtype(np.float32), width),
            sweep_gpu.TRANSFERS,
            self.sized(sweep_gpu.KNOBS, {"ps": [2, 8], "dist": [1, 4], "wpb": [2, 8]}),
            share=0.0,
            seconds=self.sized(120.0, 2.0),
            options=self.options,
            stage=self.stage,
        )

    def profile(self) -> None:
        """What the counters say of the hot kernels, beside the model."""
        names = list(launches.FUNCTIONS)
        if self.stage is None:
            profile_gpu.process_profile(profile_gpu.GRAPH, [16, 128], names, self.options)
            return
        from shim.bench import fake_ncu

        with tempfile.TemporaryDirectory(prefix="mgg-ncu-") as folder:
            os.environ["PATH"] = f"{fake_ncu.made(Path(folder) / 'bin')}{os.pathsep}{os.environ['PATH']}"
            os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (LAUNCHER.parents[1], LAUNCHER.parents[2])))
            child = (sys.executable, str(LAUNCHER), str(self.library))
            profile_gpu.process_profile("rmat:7:8", [5, 64], names, self.options, child)

    def huge(self) -> None:
        """A table as large as papers100M's, and a layer over it."""
        size = huge_gpu.Size(*self.sized(PAPERS, (300, 6000, 12, 5)), "uniform", 0)
        huge_gpu.process_huge(size, self.options, self.stage)

    def start(self) -> None:
        """What training takes before its first epoch, of a hundred million edges; over the shim, on the CPU."""
        size = self.sized((startup.GRAPH, "cuda"), ("rmat:6:8", "serial"))
        stage = self.stage or Stage.gpu()
        about = {"device": stage.module.limits(), "copy_gb_per_s": stage.copy_gb_per_s()}
        startup.process_start(size[0], 1, size[1], self.options, about)


BENCHES = {
    "aggregate": Bench.aggregate,
    "half-rows": Bench.half_rows,
    "overlap": Bench.overlap,
    "epoch": Bench.epoch,
    "sweep": Bench.sweep,
    "sweep-narrow": Bench.sweep_narrow,
    "profile": Bench.profile,
    "huge": Bench.huge,
    "start": Bench.start,
}


def main(words: list[str]) -> int:
    """See above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", choices=tuple(BENCHES))
    parser.add_argument("--device", choices=("cuda", "shim"), default="cuda")
    parser.add_argument("--library", type=Path, help="a _cuda that was built for the shim")
    parser.add_argument("--turns", type=int, help=f"of each worker [default: {TURNS}, over the shim 2]")
    parser.add_argument("--seed", type=int, default=0, help="of the shim's order of execution")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    shim = arguments.device == "shim"
    if shim and not arguments.library:
        parser.error("--device shim needs --library")
    table = arguments.json and arguments.json.with_suffix(".md")
    turns = arguments.turns or (2 if shim else TURNS)
    options = document.Options("none", None, 0, turns, "", arguments.json, table, None)
    try:
        stage = stage_of(Engine.shim(arguments.library), arguments.seed) if shim else None
        BENCHES[arguments.bench](Bench(options, arguments.library, stage))
    except InputError as error:
        print(f"gpu-bench: {error}", file=sys.stderr)
        return 3 if str(error).startswith(("ncu is not on PATH", "ncu may not read")) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
