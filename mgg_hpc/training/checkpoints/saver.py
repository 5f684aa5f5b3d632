"""Write checkpoints in the background, agree on when to write them, and end the job if a signal asks for it.

Ranks exchange one integer per epoch or batch (`Saver.wants`). A checkpoint begins with a copy of the training's state,
which a thread of each rank writes; that thread makes no MPI calls. Once all ranks have written their files, rank 0 adds
the manifest and renames the folder. At most one checkpoint is being written at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from ...config import CheckpointSettings
from ...errors import InputError, StoppedBySignal
from ...runtime import mpi, signals
from ...runtime.exit_code import write
from ...runtime.watchdog import Watchdog
from ..run_folder import MetricsFile
from . import folders
from .folders import START, Position, Written
from .state import State

STOP, BUSY, FAILED, DUE = 1, 2, 4, 8  # bits that ranks exchange


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Run a function in a daemon thread, so that a process which fails does not wait for its disk."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


def _failure(task: Future[Any] | None) -> str:
    """Return the OSError of a finished task as text, "" if it succeeded. Raises any other exception of the task."""
    error = None if task is None else task.exception()
    if error is None:
        return ""
    if not isinstance(error, OSError):
        raise error
    return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")


class Saver:
    """The checkpoints of one run. All methods are collective.

    Args:
        comm: communicator of the run's ranks.
        settings: when to write checkpoints, and how many to keep.
        folder: parent of the checkpoints on rank 0, None on other ranks.
        all_write: True if every rank writes files, False if only rank 0 does.
        newest: position of the newest existing checkpoint, or START.
        command: the command that resumes, for messages.
        metrics: file that must be on the disk before a checkpoint refers to its length.
        dog: watchdog to tell about waiting for the disk.
    """

    def __init__(
        self,
        comm: Any,
        settings: CheckpointSettings,
        folder: Path | None,
        *,
        all_write: bool,
        newest: Position,
        command: str,
        metrics: MetricsFile | None = None,
        dog: Watchdog | None = None,
    ) -> None:
        self._comm, self._settings, self._folder = comm, settings, folder
        self._all_write, self._command = all_write and comm.size > 1, command
        self._metrics, self._dog = metrics, dog
        self._began = time.monotonic()
        self._latest = self._newest = newest  # the last one that began; the last one that was completed
        self._at: Position | None = None  # of the checkpoint being written
        self._draft: Path | None = None
        self._task: Future[Any] | None = None
        self._committing = self._stopping = self._waits = False
        self._failed = ""  # why the last checkpoint was not written

    def wants(self, at: Position, *, last: bool = False) -> bool:
        """Advance the checkpoint being written, and return whether `save` must be called with the present state.

        Called after each epoch, and after each batch but an epoch's last. last: the training has ended, so its state is
        saved unless the settings ask for no checkpoints, and signals are ignored.
        """
        if last:
            self.finish()
            self._waits = bool(self._settings.every_epochs or self._settings.every_minutes)
            return self._waits and self._newest != at
        said = self._exchange(STOP * signals.came() + DUE * self._is_due(at))
        self._advance(said)
        if said & STOP:
            self.finish()
            self._stopping = self._waits = True
        return bool(said & STOP) or (bool(said & DUE) and self._at is None)

    def save(self, at: Position, state: State) -> None:
        """Begin to write the state at a position; wait until it is written if no epoch follows.

        Raises StoppedBySignal once the state is saved if any rank received a signal, InputError if it cannot be saved.
        """
        self._begin(at, state)
        if self._waits:
            self.finish()
        if self._stopping:
            self._stop(at)

    def fail(self, at: Position, why: str) -> None:
        """Warn that the state at a position could not be copied; training continues. why: the same on all ranks.

        Raises InputError if any rank received a signal.
        """
        self._latest, self._began = at, time.monotonic()
        self._warn(at, why)
        if self._stopping:
            self._stop(at)

    def finish(self) -> None:
        """Wait until the checkpoint being written is complete."""
        if self._at is not None and self._dog is not None:
            self._dog.step(f"saving the state of {self._at}")
        while self._at is not None:
            if self._task is not None:
                wait([self._task])
            self._advance(self._exchange(0))

    def _exchange(self, mine: int) -> int:
        """Return the bits set on any rank, with this rank's, and whether its task runs or has failed."""
        if self._task is not None:
            mine += FAILED * bool(_failure(self._task)) if self._task.done() else BUSY
        return mpi.any_bits(self._comm, mine)

    def _is_due(self, at: Position) -> bool:
        """Return whether the settings ask for a checkpoint now, by rank 0's clock.

        One that becomes due while another is being written begins after that.
        """
        if self._comm.rank != 0 or self._at is not None:
            return False
        every, minutes = self._settings.every_epochs, self._settings.every_minutes
        waited = time.monotonic() - self._began
        by_epochs = every > 0 and at.epoch // every > self._latest.epoch // every
        return by_epochs or (minutes > 0 and waited >= 60 * minutes)

    def _begin(self, at: Position, state: State) -> None:
        """Make the temporary folder, and start the threads that write."""
        self._at, self._latest, self._committing = at, at, False
        self._began = time.monotonic()
        first = self._comm.rank == 0
        wrong, draft = "no folder to write to", None
        if first:
            assert self._folder is not None
            try:
                draft = folders.draft(self._folder, *at)
            except OSError as error:
                wrong = f"{self._folder}: {error.strerror}"
        draft = self._draft = self._comm.bcast(draft, root=0)
        rank, alone = self._comm.rank, not self._all_write

        def write_state() -> Any:
            if draft is None:
                raise OSError(wrong)
            if self._metrics is not None:
                self._metrics.sync()
            files = {name: folders.write_file(draft / name, pieces) for name, pieces in state.files(rank)}
            return self._commit(draft, at, files) if alone else files

        self._task = _in_thread(write_state) if first or self._all_write else None

    def _commit(self, draft: Path, at: Position, files: dict[str, Written]) -> None:
        made = folders.commit(draft, at.epoch, files, at.batch)
        folders.prune(made.parent, self._settings.keep, at)

    def _advance(self, said: int) -> None:
        """Take the next step of the checkpoint being written, once all ranks have ended the step before."""
        if self._at is None or said & BUSY:
            return
        if not said & FAILED and self._all_write and not self._committing:
            assert self._task is not None
            every = self._comm.gather(self._task.result(), root=0)
            self._task, self._committing = None, True
            if self._comm.rank == 0:
                files = {name: file for each in every for name, file in each.items()}
                draft, at = self._draft, self._at
                assert draft is not None
                self._task = _in_thread(lambda: self._commit(draft, at, files))
            return
        if said & FAILED:
            self._give_up()
        else:
            self._newest = self._at
        self._at, self._task, self._draft = None, None, None

    def _give_up(self) -> None:
        """Remove what was written, and warn; training continues."""
        assert self._at is not None
        why = next(filter(None, self._comm.allgather(_failure(self._task))))
        if self._draft is not None and self._comm.rank == 0:
            folders.discard(self._draft)
        self._warn(self._at, why)

    def _warn(self, at: Position, why: str) -> None:
        """Warn that a checkpoint was not written."""
        self._failed = why
        if self._comm.rank == 0 and not self._stopping:
            before = f"the last one is of {self._newest}" if self._newest != START else "there is none yet"
            write(f"mgg: warning: the checkpoint of {at} was not written ({why}); {before}")

    def _stop(self, at: Position) -> None:
        stopped = f"stopped by {signals.name()} after {at}"
        if self._newest == at:
            raise StoppedBySignal(f"{stopped}, which is saved; {self._command} goes on from there")
        last = f"{self._command} goes on from {self._newest}" if self._newest != START else "nothing is saved"
        raise InputError(f"{stopped}, which could not be saved ({self._failed}); {last}")
