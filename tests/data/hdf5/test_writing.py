"""Neither reading nor writing makes HDF5 load a library of HDF5_PLUGIN_PATH, whatever a file asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import pytest
from h5py import h5pl

import mgg_hpc
from mgg_hpc.data.hdf5.writing import created, without_plugins

from .mutants import Originals, unknown_filter

PLUGIN = """
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) { fclose(fopen(MARK, "w")); }
int H5PLget_plugin_type(void) { return 0; }
const void *H5PLget_plugin_info(void) { return 0; }
"""
READERS = {
    "h5py alone": "h5py.File(path)['node/x'][()]",
    "open_graph": "open_graph(path)",
    "verify": "verify(path)",
    "write_bounds": "write_bounds(path, 1, np.array([0, 40]), 'edges', [1])",
    "the library, as it writes": "with without_plugins(): h5py.File(path)['node/x'][()]",
}


@pytest.fixture
def plugin(tmp_path, require) -> tuple[Path, Path]:
    """A folder with a library, and the file that the library makes when it is loaded."""
    require(shutil.which("cc") is not None, "no C compiler", "apt install gcc")
    folder, mark = tmp_path / "plugins", tmp_path / "mark"
    folder.mkdir()
    (tmp_path / "plugin.c").write_text(PLUGIN)
    library = folder / "libplugin.so"
    command = ["cc", "-shared", "-fPIC", f'-DMARK="{mark}"', "-o", str(library), str(tmp_path / "plugin.c")]
    subprocess.run(command, check=True)
    return folder, mark


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_no_plugin_is_loaded(reader, plugin, tmp_path):
    """But h5py by itself loads it, which shows that the library is where HDF5 looks for it."""
    folder, mark = plugin
    path = Originals(tmp_path).files[0]
    with h5py.File(path, "r+") as file:
        data = file["node/x"][()]
        del file["node/x"]
        unknown_filter(file, "node/x", data)
    script = f"""
        import h5py, numpy as np
        from mgg_hpc.data.hdf5.writing import without_plugins
        from mgg_hpc.data.store import open_graph
        from mgg_hpc.data.writer import write_bounds
        from mgg_hpc.data.verify import verify
        path = {str(path)!r}
        try:
            exec({READERS[reader]!r})
        except Exception as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "HDF5_PLUGIN_PATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert mark.exists() == (reader == "h5py alone"), done.stdout
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
    package = Path(mgg_hpc.__file__).parent
    naming = {
        path.name
        for path in package.rglob("*.py")
        if "h5py.File(" in path.read_text().replace("``h5py.File(", "")
    }
    assert naming == {"writing.py"}
