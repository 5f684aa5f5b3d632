"""Make HDF5 files by the HDF5 library, the one way for the whole package: it loads no plugins meanwhile.

The library looks for filters and connectors that it does not have in the folders of HDF5_PLUGIN_PATH, and runs what it
finds there. These folders are taken away while a file is open, and given back, since other parts of the program may
need them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
from h5py import h5pl

_plugins = threading.RLock()  # the list of folders is one for the whole process


@contextmanager
def created(path: Path, **options: Any) -> Iterator[h5py.File]:
    """Make a file as ``h5py.File(path, "w", **options)`` does, without plugins. Raises what h5py raises."""
    with without_plugins(), h5py.File(path, "w", **options) as file:
        yield file


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
