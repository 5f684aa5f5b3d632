"""Write checkpoints while training goes on, and agree on when; end the job where a signal asks for it.

Ranks exchange one small number an epoch, or a batch (`Saver.after_epoch`, `Saver.after_batch`). A checkpoint begins
with copies of what training changes, and a thread of each rank writes them; no thread calls MPI. Once all ranks have
written, rank 0 adds the manifest and gives the folder its name. At most one checkpoint is under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...config import CheckpointSettings
from ...errors import InputError, StoppedBySignal
from ...runtime import mpi, signals
from ...runtime.exit_code import write
from . import folders
from .folders import START, Position, Written
from .state import State

STOP, BUSY, FAILED, DUE = 1, 2, 4, 8  # bits of what ranks tell each other


class _Task:
    """A function that runs in a thread: `done` once it has ended, with `found`, or with `error` as a text.

    An error that is no OSError is raised by `check`, which the main thread calls.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.found: Any = None
        self.error = ""
        self._unexpected: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            self.found = function()
        except OSError as error:
            self.error = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
        except Exception as error:
            self._unexpected = error

    def check(self) -> None:
        """Raise what the function has raised, but for an OSError. It has ended."""
        if self._unexpected is not None:
            raise self._unexpected

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()


class Saver:
    """The checkpoints of one run. All methods are collective.

    folder: where they are, on rank 0; None elsewhere. capture: returns this rank's `State` at a place; called on all
    ranks. apart: whether every rank writes files. sound: where the newest checkpoint so far is, or START. again: the
    command that goes on, for messages. before: called by rank 0's thread before it writes, to make durable what the
    state refers to. waits: called with what it waits for, before it does.
    """

    def __init__(
        self,
        comm: Any,
        settings: CheckpointSettings,
        folder: Path | None,
        capture: Callable[[Position], State],
        *,
        apart: bool,
        sound: Position,
        again: str,
        before: Callable[[], None] = lambda: None,
        waits: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._comm, self._settings, self._folder, self._capture = comm, settings, folder, capture
        self._before, self._apart, self._sound, self._again = before, apart and comm.size > 1, sound, again
        self._waits = waits
        self._began = time.monotonic()
        self._latest = sound  # where the checkpoint began that began last
        self._at: Position | None = None  # of the checkpoint under way
        self._draft: Path | None = None
        self._task: _Task | None = None
        self._committing = False
        self._stopping, self._wrong = False, ""  # why the last one was not written

    def after_epoch(self, epoch: int, *, last: bool = False) -> None:
        """Begin, go on with or finish a checkpoint; called after each epoch.

        last: no other epoch follows, so its state is saved, unless the settings ask for no checkpoints, and a signal
        changes nothing. Raises StoppedBySignal once the state of this epoch is saved, if any rank was sent a signal;
        InputError where it cannot be saved then.
        """
        if last:
            self._end(Position(epoch))
        else:
            self._after(Position(epoch))

    def after_batch(self, epoch: int, batches: int) -> None:
        """As `after_epoch`, after batches of an epoch, but the last one. epoch: those that are complete."""
        self._after(Position(epoch, batches))

    def _after(self, at: Position) -> None:
        said = self._exchange(STOP * signals.came() + DUE * self._is_due(at))
        self._go_on(said)
        if said & STOP:
            self.finish()
            self._begin(at)
            self._stopping = True
            self.finish()
            self._stop(at)
        if said & DUE and self._at is None:
            self._begin(at)

    def _end(self, at: Position) -> None:
        self.finish()
        if (self._settings.every_epochs or self._settings.every_minutes) and self._sound != at:
            self._begin(at)
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint under way is complete."""
        if self._at is not None:
            self._waits(f"saving the state of {self._at}")
        while self._at is not None:
            if self._task is not None:
                self._task.wait()
            self._go_on(self._exchange(0))

    def _exchange(self, mine: int) -> int:
        busy = failed = False
        if self._task is not None:
            busy = not self._task.done
            if not busy:
                self._task.check()
                failed = bool(self._task.error)
        return mpi.any_bits(self._comm, mine + BUSY * busy + FAILED * failed)

    def _is_due(self, at: Position) -> bool:
        """Whether the settings ask for a checkpoint now; rank 0's clock decides.

        One that is due while another is under way begins once that one is done.
        """
        if self._comm.rank != 0 or self._at is not None:
            return False
        every, minutes = self._settings.every_epochs, self._settings.every_minutes
        waited = time.monotonic() - self._began
        by_epochs = every > 0 and at.epoch // every > self._latest.epoch // every
        return by_epochs or (minutes > 0 and waited >= 60 * minutes)

    def _begin(self, at: Position) -> None:
        """Copy the state, and start writing it."""
        self._at, self._latest, self._committing = at, at, False
        self._began = time.monotonic()
        first = self._comm.rank == 0
        wrong = ""
        if first:
            assert self._folder is not None
            try:
                self._draft = folders.draft(self._folder, *at)
            except OSError as error:
                wrong, self._draft = f"{self._folder}: {error.strerror}", None
        self._draft = self._comm.bcast(self._draft, root=0)
        state = self._capture(at) if self._draft else None
        draft, rank, alone = self._draft, self._comm.rank, first and not self._apart

        def save() -> Any:
            if wrong or state is None or draft is None:
                raise OSError(wrong or "no folder to write to")
            if first:
                self._before()
            files = {name: folders.write_file(draft / name, pieces) for name, pieces in state.files(rank)}
            return self._committed(draft, at, files) if alone else files

        self._task = _Task(save) if first or self._apart else None

    def _committed(self, draft: Path, at: Position, files: dict[str, Written]) -> None:
        made = folders.commit(draft, at.epoch, files, at.batch)
        folders.prune(made.parent, self._settings.keep, at)

    def _go_on(self, said: int) -> None:
        """Take the next step of the checkpoint under way, if all ranks have ended the one before."""
        if self._at is None or said & BUSY:
            return
        if not said & FAILED and self._apart and not self._committing:
            assert self._task is not None
            every = self._comm.gather(self._task.found, root=0)
            self._task, self._committing = None, True
            if self._comm.rank == 0:
                files = {name: file for each in every for name, file in each.items()}
                draft, at = self._draft, self._at
                assert draft is not None
                self._task = _Task(lambda: self._committed(draft, at, files))
            return
        if said & FAILED:
            self._give_up()
        else:
            self._sound = self._at
        self._at, self._task, self._draft = None, None, None

    def _give_up(self) -> None:
        """Say that this checkpoint was not written; training goes on."""
        every = self._comm.allgather(self._task.error if self._task is not None else "")
        self._wrong = next(each for each in every if each)
        if self._comm.rank == 0:
            if self._draft is not None:
                folders.discard(self._draft)
            if not self._stopping:
                there = f"the last one is of {self._sound}" if self._sound != START else "there is none yet"
                write(f"mgg: warning: the checkpoint of {self._at} was not written ({self._wrong}); {there}")

    def _stop(self, at: Position) -> None:
        stopped = f"stopped by {signals.name()} after {at}"
        if self._sound == at:
            raise StoppedBySignal(f"{stopped}, which is saved; {self._again} goes on from there")
        last = f"{self._again} goes on from {self._sound}" if self._sound != START else "nothing is saved"
        raise InputError(f"{stopped}, which could not be saved ({self._wrong}); {last}")
