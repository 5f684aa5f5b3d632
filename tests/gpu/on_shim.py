"""Run a Python program with the shim in place of the GPU: python tests/gpu/on_shim.py PROGRAM [ARGUMENT]..."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:1] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "benchmarks")]


def put_shim() -> None:
    """Put the shim in the place of the GPU, in this process and in those that measure libraries."""
    from builds import made
    from harness import pes, workers

    from gpu.pes.engine import Engine
    from gpu.pes.shim_device import shim_device
    from mgg_hpc.runtime.backends.cuda import module
    from mgg_hpc.runtime.backends.cuda import rank as cuda_rank

    engine = Engine.shim(made("shim") / "_cuda.so")
    device = shim_device(engine)
    pes.Device.current = lambda: device  # type: ignore[method-assign]
    module.load, module.need_device = lambda: engine.module, lambda _: 1
    cuda_rank.hardware = lambda: (engine.module, engine.arrays)
    workers.WORKER = [__file__, *workers.WORKER]


if __name__ == "__main__":
    put_shim()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
