"""Which MPI library Python loads, and the launcher that belongs to it."""

from __future__ import annotations

import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import find_mpi
from mgg_hpc.runtime.find_mpi import Library

OPEN_MPI, MPICH = "Open MPI v4.1.4, package: x", "MPICH Version:      5.0.2 MPICH Release date: x"


def test_launcher_of_another_family_beside_the_library_is_not_used(tmp_path, monkeypatch):
    """Nor where there is none: what to install is said."""
    monkeypatch.setenv("PATH", str(tmp_path))
    found, launcher = Library(OPEN_MPI, tmp_path / "lib" / "libmpi.so.40"), tmp_path / "bin" / "mpiexec"
    for says in (None, "HYDRA build details:"):
        launcher.parent.mkdir(exist_ok=True)
        if says:
            launcher.write_text(f"#!/bin/sh\necho '{says}'\n")
            launcher.chmod(0o755)
        with pytest.raises(InputError, match=r"loads Open MPI v4\.1\.4 .* apt install openmpi-bin"):
            find_mpi.launcher(found)
    launcher.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    assert find_mpi.launcher(found) == launcher


@pytest.mark.parametrize(
    ("text", "name", "family", "major"),
    [
        (OPEN_MPI, "Open MPI v4.1.4", "openmpi", 4),
        ("Open MPI v5.0.11rc1, package: x", "Open MPI v5.0.11rc1", "openmpi", 5),
        (MPICH, "MPICH 5.0.2", "mpich", 5),
        ("Intel(R) MPI Library 2021.14 for Linux* OS", "Intel(R) MPI Library 2021.14", "mpich", 2021),
    ],
)
def test_libraries_are_told_apart(text, name, family, major):
    found = Library(text, None)
    assert (found.name, found.family, found.major) == (name, family, major)


def test_a_machine_whose_name_has_no_address_is_named_to_the_launcher(tmp_path, monkeypatch):
    def unknown(name):
        raise OSError(f"{name}: Name or service not known")

    mpich, open_mpi = Library(MPICH, tmp_path / "libmpi.so"), Library(OPEN_MPI.replace("4", "5", 1), None)
    monkeypatch.setattr(find_mpi.socket, "gethostbyname", unknown)
    assert find_mpi.launcher_flags(mpich) == ["-localhost", "127.0.0.1"]
    assert find_mpi.launcher_flags(open_mpi) == ["--bind-to", "none"]
    monkeypatch.setattr(find_mpi.socket, "gethostbyname", lambda name: "127.0.1.1")
    assert find_mpi.launcher_flags(mpich) == []


@pytest.mark.parametrize("where", ["a module", "a launcher", "a launcher, 64 bits", "the loader"])
def test_the_machines_own_library_is_where_modules_launchers_or_the_loader_look(tmp_path, monkeypatch, where):
    library = tmp_path / ("lib64" if "64" in where else "lib") / "libmpi.so.12"
    for path in (library, *[tmp_path / "bin" / "mpirun"] * ("launcher" in where)):
        path.parent.mkdir()
        path.touch()
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(f"#!/bin/sh\necho 2 libs\nprintf '\\tlibmpi.so.12 (libc6,x86-64) => {library}\\n'\n")
    ldconfig.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{library.parent}" if where == "a module" else "")
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path / 'bin'}")
    loader = str(ldconfig) if where == "the loader" else None
    monkeypatch.setattr(find_mpi.shutil, "which", lambda *_, **__: loader)
    assert find_mpi.system_library() == library
