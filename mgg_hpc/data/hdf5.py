"""Open HDF5 files without loading plugins, and create contiguous datasets."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5pl

# Since format 1.8 HDF5 checksums its own structures, so that damage is an error. In older formats, and in strings of
# variable length, damage leads to endless loops and invalid reads.
LIBVER = ("v108", "v108")

_plugins = threading.RLock()  # the list of folders is global to the process


@contextmanager
def opened(path: str | os.PathLike[str], mode: str, **options: Any) -> Iterator[h5py.File]:
    """Open a file as ``h5py.File(path, mode, **options)`` does, without plugins while it is open.

    HDF5 looks for filters and connectors that it does not have in the folders of HDF5_PLUGIN_PATH, and runs the
    libraries that it finds there. These folders are restored afterwards, since other parts of a program may need them.
    """
    with _plugins:
        folders = [h5pl.get(number) for number in range(h5pl.size())]
        for _ in folders:
            h5pl.remove(0)
        try:
            with h5py.File(path, mode, **options) as file:
                yield file
        finally:
            for folder in folders:
                h5pl.append(folder)


def create_dataset(file: h5py.File, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Create a contiguous dataset whose bytes are written later, and return their offset in the file."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)  # equal contents give equal bytes
    folder, _, name = path.rpartition("/")
    kind = h5py.h5t.py_create(dtype, logical=True)
    space = h5py.h5s.create_simple(shape)
    dataset = h5py.h5d.create(file.require_group(folder or "/").id, name.encode(), kind, space, plan)
    return int(dataset.get_offset() or 0)


def replace_texts(path: Path, texts: Mapping[str, str]) -> None:
    """Replace text attributes of a file's root by texts of the same length."""
    with opened(path, "r+", libver=LIBVER, locking=False) as file:
        for name, text in texts.items():
            attribute = h5py.h5a.open(file.id, name.encode())
            attribute.write(np.array(text.encode(), dtype=attribute.dtype))
