"""`mgg` as a rank whose GPU the shim plays: python rank_child.py MODULE [FAULT] -- ARGUMENTS.

FAULT, on rank 1: "start" fails as NVSHMEM starts, "sleep" stops in the second epoch; on all ranks: "driver" pretends
that CUDA's driver is installed, "torch" that torch has no CUDA, "missing" also that the native module does not load,
"alone" that the GPU gathers for the thread that trains and for no other,
"far" that no pointer leads to a peer, "no sampling" leaves draws to the CPU, "old" that the GPU is of an older
generation, "group" that gradients are summed by a process group, as on GPUs of their own, on rank 0: "order"
prints a line for each gather of rows by number with its stream (0 or 1), wait for the second stream, and step.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))

import torch
from gpu.pes.engine import Engine

from mgg_hpc.__main__ import main
from mgg_hpc.runtime import device
from mgg_hpc.runtime.backends.cuda import collectives, nvshmem
from mgg_hpc.runtime.backends.cuda import rank as cuda_rank
from mgg_hpc.runtime.backends.cuda.context import DeviceStream
from mgg_hpc.runtime.backends.cuda.device_arrays import DeviceArrays
from mgg_hpc.runtime.backends.cuda.rows import Gathers
from mgg_hpc.training import trainer

library, fault, words = Path(sys.argv[1]), sys.argv[2], sys.argv[4:]
engine = Engine.shim(library)
if fault == "missing":
    sys.modules["mgg_hpc._cuda"] = None
else:
    cuda_rank.hardware = lambda: (engine.module, DeviceArrays() if fault == "torch" else engine.arrays)
DeviceStream.probe_rows = 64  # a GPU's take minutes here
first = os.environ.get("PMI_RANK", "0") == "0"


class Other:
    """The module, but for a few functions."""

    def __init__(self, **other: Any) -> None:
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return self._other.get(name) or getattr(engine.module, name)


class Gloo(collectives.NcclSums):
    """A process group that needs no GPU."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm, "gloo")

    @staticmethod
    def available() -> bool:
        return True

    def add_up(self, values: Any) -> None:
        print("summed by a process group")
        super().add_up(torch.from_numpy(values))


def fails(*arguments: Any) -> int:
    raise RuntimeError("NVSHMEM: starting failed with status 7")


class Stopping(trainer.Trainer):
    """Waits for ever as its second epoch begins."""

    def step(self, epoch: int) -> None:
        if epoch == 2:
            time.sleep(1000)
        super().step(epoch)


def announce(kind: type, name: str, what: Callable[[], str]) -> None:
    method = getattr(kind, name)
    setattr(kind, name, lambda *given: (print(f"order: {what()}"), method(*given))[1])


if fault == "far":
    cuda_rank.NvshmemPeers = lambda *given: nvshmem.NvshmemPeers(*given, lambda rank, peer: rank == peer)
if fault == "no sampling":
    cuda_rank.RankBackend.sampling = None
if fault in ("driver", "missing"):
    device.has_driver = lambda: True
if fault == "start" and not first:
    module = Other(nvshmem_start=fails)
    cuda_rank.hardware = lambda: (module, engine.arrays)
if fault == "alone":
    gather = cuda_rank.RankBackend.gather

    def by_main_thread(*given: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        gather(*given)

    cuda_rank.RankBackend.gather = by_main_thread
if fault == "old":
    limits = engine.module.limits() | {"compute_capability": 75}
    cuda_rank.hardware = lambda: (Other(limits=lambda: limits), engine.arrays)
if fault == "group":
    cuda_rank.NcclSums = Gloo
    cuda_rank.RankBackend.records = True  # what the shim cannot
if fault == "order" and first:
    announce(Gathers, "by_number", lambda: f"gather {engine.arrays.stream()}")
    announce(DeviceStream, "wait", lambda: "wait")
    announce(trainer.Trainer, "step_on", lambda: "step")
if fault == "sleep" and not first:
    from mgg_hpc.training import train

    train.Trainer = Stopping

if __name__ == "__main__":
    sys.exit(main(words))
