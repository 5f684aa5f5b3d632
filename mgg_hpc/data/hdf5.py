"""Make HDF5 files by the HDF5 library, the one way for the whole package: it loads no plugins meanwhile.

The library looks for filters and connectors that it does not have in the folders of HDF5_PLUGIN_PATH, and runs what it
finds there. These folders are taken away while a file is open, and given back, since other parts of the program may
need them.
"""

from __future__ import annotations

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

_plugins = threading.RLock()  # the list of folders is one for the whole process


@contextmanager
def created(path: Path, **options: Any) -> Iterator[h5py.File]:
    """Make a file as ``h5py.File(path, "w", **options)`` does, without plugins. Raises what h5py raises."""
    with without_plugins(), h5py.File(path, "w", **options) as file:
        yield file


def fill_in(path: Path, texts: Mapping[str, str]) -> None:
    """Replace text attributes of the root of a file that was just made, by others as long."""
    with without_plugins(), h5py.File(path, "r+", libver=LIBVER, locking=False) as file:
        for name, text in texts.items():
            attribute = h5py.h5a.open(file.id, name.encode())
            attribute.write(np.array(text.encode(), dtype=attribute.dtype))


@contextmanager
def without_plugins() -> Iterator[None]:
    """Take the folders of plugins away from the HDF5 library, and give them back."""
    with _plugins:
        folders = [h5pl.get(place) for place in range(h5pl.size())]
        for _ in folders:
            h5pl.remove(0)
        try:
            yield
        finally:
            for folder in folders:
                h5pl.append(folder)
