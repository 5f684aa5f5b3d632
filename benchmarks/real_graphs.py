"""The real graphs that benchmarks run on, as graph files made in a folder of the caller's."""

from __future__ import annotations

import os
from pathlib import Path

from mgg_hpc.data import store
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers import digits, npz
from mgg_hpc.errors import InputError


def data_folder() -> Path:
    """MGG_DATA, else shared/data beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("MGG_DATA", default))


def read(name: str) -> Graph:
    """One of the data folder's graphs, or scikit-learn's digits. Raises InputError if it is not there."""
    if name == "digits":
        return digits.read_digits()
    path = data_folder() / name / f"{name}.npz"
    if not path.is_file():
        raise InputError(f"{path}: no such graph; name the folder of graphs in MGG_DATA")
    return npz.read_npz(path)


def write(name: str, folder: Path) -> Path:
    """The graph as a graph file in ``folder``, made if it is not there yet."""
    path = folder / f"{name}.h5"
    if not path.exists():
        store.write(path, read(name))
    return path
