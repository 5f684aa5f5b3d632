"""Neither reading nor writing makes HDF5 load a library of HDF5_PLUGIN_PATH, whatever a file asks for."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import programs
import pytest
from h5py import h5pl

import mgg_hpc
from mgg_hpc.data.hdf5.writing import created, without_plugins

from .mutants import Originals

SCRIPT = """
import sys
import h5py, numpy as np
from mgg_hpc.data.hdf5.writing import without_plugins
from mgg_hpc.data.store import open_graph
from mgg_hpc.data.writer import write_bounds
from mgg_hpc.data.verify import verify
path = sys.argv[1]
try:
    exec(sys.argv[2])
except Exception as error:
    print(error)
"""
READERS = {
    "h5py alone": "h5py.File(path)['node/x'][()]",
    "open_graph": "open_graph(path)",
    "verify": "verify(path)",
    "write_bounds": "write_bounds(path, 1, np.array([0, 40]), 'edges', [1])",
    "the library, as it writes": "with without_plugins(): h5py.File(path)['node/x'][()]",
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_no_plugin_is_loaded(reader, tmp_path):
    """But h5py by itself has it loaded, which shows that it is where HDF5 looks for it. The loader tells its files."""
    path = Originals(tmp_path).files[0]
    with h5py.File(path, "r+") as file:
        x = file.pop("node/x")[()]
        # One chunk that says that it went through a filter which HDF5 has not.
        options = {"compression": 32123, "allow_unknown_filter": True}
        made = file.create_dataset("node/x", x.shape, x.dtype, chunks=x.shape, **options)
        made.id.write_direct_chunk((0, 0), x.tobytes())
    (tmp_path / "libplugin.so").touch()
    environment = {"HDF5_PLUGIN_PATH": str(tmp_path), "LD_DEBUG": "files"}
    done = programs.python("-c", SCRIPT, path, READERS[reader], env={**os.environ, **environment})
    assert done.returncode == 0
    assert ("libplugin.so" in done.stderr) == (reader == "h5py alone"), done.stdout
    chunked = "/node/x is chunked or compressed" in done.stdout
    assert chunked == (reader in ("open_graph", "verify", "write_bounds")), done.stdout


def test_the_folders_of_plugins_come_back(tmp_path):
    def folders() -> list[bytes]:
        return [h5pl.get(place) for place in range(h5pl.size())]

    before = folders()
    assert before
    with without_plugins():
        assert folders() == []
        with created(tmp_path / "a.h5") as file:
            file["x"] = 1
        assert folders() == []
    assert folders() == before
    with pytest.raises(OSError, match="Unable"), created(tmp_path / "none" / "a.h5"):
        pass
    assert folders() == before


def test_the_library_opens_no_file_but_those_it_makes():
    """So that no other module has to think of plugins, or of structures that the library crashes on."""
    texts = {path.name: path.read_text() for path in Path(mgg_hpc.__file__).parent.rglob("*.py")}
    naming = {name for name, text in texts.items() if "h5py.File(" in text.replace("``h5py.File(", "")}
    assert naming == {"writing.py"}
