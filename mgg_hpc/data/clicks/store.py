"""Files of clicks: the columns of a log as HDF5, of which training reads blocks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from ...errors import InputError, shown
from ..assembly.work import Progress, WorkFolder
from ..atomic_write import check_output, replacement
from ..hdf5 import LIBVER, opened
from .criteo import INTEGERS, WORDS, Clicks

FORMAT, VERSION = "mgg-clicks", 1
COLUMNS = {"label": (np.int8, ()), "dense": (np.int32, (INTEGERS,)), "category": (np.uint32, (WORDS,))}
PIECE = 1 << 16  # rows that are copied at a time

Day = Callable[..., Iterable[Clicks]]


def write_clicks(
    path: Path,
    days: Sequence[Day],
    *,
    force: bool = False,
    key: str | None = None,
    skip_bad: bool = False,
    progress: Progress = lambda phase, done, total: None,
) -> tuple[int, int]:
    """Write the rows of some days, one after another; return their number, and that of bad lines.

    days: functions that yield the rows of each; called with the last `Clicks.end`, they go on after those rows. key:
    text that depends on the days, as of `build_graph`: a call that was killed, or ended at a bad line, goes on at a
    block when another of the same key and path begins. skip_bad: whether the days pass over bad lines; without it,
    what an earlier call has kept is not used if it did. progress: called with (phase, rows so far, rows in all or 0).
    Raises InputError if there are no rows, and as `WorkFolder` and `replacement` do.
    """
    check_output(path, force=force)
    with WorkFolder(path, key) as work:
        work.keeps = True  # days are right up to a bad line
        if not skip_bad and work.state.get("bad"):
            work.forget()
        state: dict[str, Any] = {"bounds": [0], "rows": 0, "bad": 0, "end": {}} | work.state
        with ExitStack() as held:
            columns = {}
            for number, (name, (kind, shape)) in enumerate(COLUMNS.items()):
                columns[name] = work.column(f"data{number}", np.dtype(kind), shape, state["rows"])
                held.callback(columns[name].close)
            for day in days[len(state["bounds"]) - 1 :]:
                for block in day(**state["end"]):
                    for name, column in columns.items():
                        column.append(getattr(block, name))
                    state |= {"rows": column.length, "bad": state["bad"] + block.bad, "end": block.end or {}}
                    work.keep(**state)
                    progress("reading", state["rows"], 0)
                state |= {"bounds": [*state["bounds"], state["rows"]], "end": {}}
                work.keep(**state)
        rows, bounds, content = state["rows"], np.array(state["bounds"], np.int64), xxhash.xxh3_128()
        if not rows:
            work.keeps = False
            raise InputError(f"{path}: the logs have no rows")
        content.update(bounds.tobytes())
        with replacement(path, force=force, size=0) as draft, opened(draft, "w", libver=LIBVER) as file:
            for name, source in columns.items():
                dataset = file.create_dataset(f"click/{name}", (rows, *source.shape), source.dtype)
                for first, piece in zip(range(0, rows, PIECE), source.pieces(PIECE), strict=True):
                    dataset[first : first + len(piece)] = piece
                    content.update(piece.tobytes())
                    progress(f"writing {name}", first + len(piece), rows)
            identity = str(uuid.UUID(bytes=content.digest(), version=4))
            file.attrs.update({"format": FORMAT, "version": VERSION, "days": bounds, "uuid": identity})
        work.remove()
    return rows, state["bad"]


@dataclass(frozen=True)
class ClickFile:
    """An open file of clicks.

    rows: their number. days: int64 [D + 1], bounds of the files that it was made of. uuid: depends on rows and days
    alone; "" of files that were written without one.
    """

    path: Path
    rows: int
    days: Any
    uuid: str
    _file: Any

    def split(self, test: float | str) -> int:
        """Return the number of training rows, which come before those for tests.

        test: share of the last rows, or "day": the last log. Raises InputError, which names the key dlrm.test.
        """
        if test == "day" and len(self.days) == 2:
            raise InputError(f'{self.path}: has one log, and dlrm.test is "day"; give a share, as 0.1')
        rows = int(self.days[-2]) if test == "day" else self.rows - round(float(test) * self.rows)
        if not rows:
            raise InputError(f"{self.path}: no row is left to train on; lower dlrm.test")
        return rows

    def read(self, first: int, last: int) -> Clicks:
        """Return rows first .. last - 1. Raises InputError for a damaged file, and a label other than 0 and 1."""
        try:
            found = Clicks(*(self._file[f"click/{column}"][first:last] for column in COLUMNS))
        except OSError as error:
            raise InputError(f"{self.path}: rows {first} to {last} cannot be read ({error})") from error
        if (wrong := found.label & ~1 != 0).any():
            row = int(wrong.argmax())
            raise InputError(f"{self.path}: row {first + row} has label {found.label[row]}; expected 0 or 1")
        return found


@contextmanager
def open_clicks(path: Path) -> Iterator[ClickFile]:
    """Open a file of clicks. Raises InputError for anything else."""
    with ExitStack() as held:
        try:
            file = held.enter_context(opened(path, "r", locking=False))
            found = str(file.attrs.get("format", ""))
            days, identity = np.asarray(file.attrs.get("days", ())), str(file.attrs.get("uuid", ""))
            version = np.asarray(file.attrs.get("version")).tolist()
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"{path}: is no file of clicks ({error}); 'mgg import clicks' writes one"
            ) from error
        if found != FORMAT:
            raise InputError(
                f"{path}: is no file of clicks (format {shown(found)}); 'mgg import clicks' writes one"
            )
        if version != VERSION:
            raise InputError(
                f"{path}: is a file of clicks of version {shown(version)}; this program reads version {VERSION}"
            )
        if days.dtype != np.int64 or days.ndim != 1 or len(days) < 2 or days[0] or (np.diff(days) < 0).any():
            raise InputError(f"{path}: the attribute days is missing, or is no bounds of days")
        for column, (kind, shape) in COLUMNS.items():
            data = file.get(f"click/{column}") if f"click/{column}" in file else None
            if not isinstance(data, h5py.Dataset) or (data.dtype, data.shape) != (
                kind,
                (int(days[-1]), *shape),
            ):
                raise InputError(
                    f"{path}: /click/{column} is missing, or not {np.dtype(kind).name} [rows{shape}]"
                )
        yield ClickFile(path, int(days[-1]), days, identity, file)
