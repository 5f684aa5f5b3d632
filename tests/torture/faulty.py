"""Run `mgg` on this rank, and let it do something wrong in the middle of an epoch.

    mgg launch -n 3 faulty.py KIND RANK EPOCH STAMP arguments of mgg

KIND: "raise" (an error that nothing catches), "exit" (os._exit), "segv" (SIGSEGV) or "kill" (SIGKILL); RANK does it in
the step of EPOCH, after it has written the time into the file STAMP. "read" (a wrong input that this rank alone meets):
where it draws the third batch of EPOCH.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from mgg_hpc.__main__ import main as mgg
from mgg_hpc.errors import InputError
from mgg_hpc.nn.sampling.batches import Batches
from mgg_hpc.training.trainer import Trainer


def fail(kind: str) -> None:
    """Do it."""
    if kind == "raise":
        raise ZeroDivisionError("planted")
    if kind == "exit":
        os._exit(7)
    if kind == "segv":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


def main(words: list[str]) -> int:
    kind, rank, epoch, stamp, *arguments = words
    step, sampled = Trainer.step, Batches._sampled

    def unread(batches: Batches, order: Any, now: int, number: int, **how: bool) -> Any:
        if (now, number) == (int(epoch), 2) and batches._source.comm.rank == int(rank):
            Path(stamp).write_text(str(time.time()))
            raise InputError("row 3 cannot be read")
        return sampled(batches, order, now, number, **how)

    def faulty(trainer: Trainer, now: int) -> Any:
        if now == int(epoch) and trainer.job.comm.rank == int(rank):
            Path(stamp).write_text(str(time.time()))
            fail(kind)
        return step(trainer, now)

    if kind == "read":
        Batches._sampled = unread  # type: ignore[method-assign]
    else:
        Trainer.step = faulty  # type: ignore[method-assign]
    return mgg(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
