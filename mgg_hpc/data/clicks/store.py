"""Files of clicks: the columns of a log as HDF5, of which training reads blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ..atomic_write import replacement
from ..hdf5 import LIBVER, opened
from .criteo import INTEGERS, WORDS, Clicks

FORMAT, VERSION = "mgg-clicks", 1
COLUMNS = {"label": (np.int8, ()), "dense": (np.int32, (INTEGERS,)), "category": (np.uint32, (WORDS,))}
CHUNK = 8192  # rows


def write_clicks(
    path: Path,
    days: Sequence[Iterable[Clicks]],
    *,
    force: bool = False,
    doing: Callable[[int], None] = lambda rows: None,
) -> tuple[int, int]:
    """Write the rows of some days, one after another; return their number, and that of bad lines.

    doing: called with the number of rows so far. Raises InputError if there are no rows, and as `replacement`.
    """
    bounds, bad = [0], 0
    with replacement(path, force=force, size=0) as name, opened(name, "w", libver=LIBVER) as file:
        columns = {
            column: file.create_dataset(
                f"click/{column}", (0, *shape), kind, maxshape=(None, *shape), chunks=(CHUNK, *shape)
            )
            for column, (kind, shape) in COLUMNS.items()
        }
        rows = 0
        for day in days:
            for block in day:
                end, bad = rows + len(block.label), bad + block.bad
                for column, dataset in columns.items():
                    dataset.resize(end, 0)
                    dataset[rows:end] = getattr(block, column)
                rows = end
                doing(rows)
            bounds.append(rows)
        if not rows:
            raise InputError(f"{path}: the logs have no rows")
        file.attrs.update({"format": FORMAT, "version": VERSION, "days": np.array(bounds, np.int64)})
    return rows, bad


@dataclass(frozen=True)
class ClickFile:
    """An open file of clicks. rows: their number. days: int64 [D + 1], bounds of the files that it was made of."""

    path: Path
    rows: int
    days: Any
    _file: Any

    def read(self, first: int, last: int) -> Clicks:
        """Return rows first .. last - 1. Raises InputError for a damaged file."""
        try:
            return Clicks(*(self._file[f"click/{column}"][first:last] for column in COLUMNS))
        except OSError as error:
            raise InputError(f"{self.path}: rows {first} to {last} cannot be read ({error})") from error


@contextmanager
def open_clicks(path: Path) -> Iterator[ClickFile]:
    """Open a file of clicks. Raises InputError for anything else."""
    try:
        held = opened(path, "r", locking=False)
        file = held.__enter__()
    except OSError as error:
        raise InputError(f"{path}: is no file of clicks ({error}); 'mgg import clicks' writes one") from error
    try:
        found = str(file.attrs.get("format", ""))
        if found != FORMAT or file.attrs.get("version") != VERSION:
            raise InputError(
                f"{path}: is no file of clicks (format {found!r}); 'mgg import clicks' writes one"
            )
        for column, (kind, shape) in COLUMNS.items():
            data = file.get(f"click/{column}")
            if data is None or data.dtype != kind or data.shape != (int(file.attrs["days"][-1]), *shape):
                raise InputError(
                    f"{path}: /click/{column} is missing, or not {np.dtype(kind).name} [rows{shape}]"
                )
        yield ClickFile(path, int(file.attrs["days"][-1]), file.attrs["days"], file)
    finally:
        held.__exit__(None, None, None)
