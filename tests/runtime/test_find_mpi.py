"""Which MPI library Python loads, and the launcher that belongs to it."""

from __future__ import annotations

import pytest

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import find_mpi


def test_missing_launcher_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    lonely = find_mpi.Library("Open MPI v5.0.1, package: x", tmp_path / "a/b/c/d/lib/libmpi.so.40")
    with pytest.raises(InputError, match=r"loads Open MPI v5\.0\.1 .* apt install openmpi-bin"):
        find_mpi.launcher(lonely)


def test_launcher_of_another_family_beside_the_library_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    imposter = tmp_path / "bin" / "mpiexec"
    imposter.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    imposter.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_mpi.Library("Open MPI v4.1.4, package: x", tmp_path / "lib" / "libmpi.so.40")
    with pytest.raises(InputError, match="openmpi-bin"):
        find_mpi.launcher(found)
    imposter.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    assert find_mpi.launcher(found) == imposter


@pytest.mark.parametrize(
    ("text", "name", "family", "major"),
    [
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI v4.1.4", "openmpi", 4),
        ("Open MPI v5.0.11rc1, package: x", "Open MPI v5.0.11rc1", "openmpi", 5),
        ("MPICH Version:      5.0.2 MPICH Release date: x", "MPICH 5.0.2", "mpich", 5),
        ("Intel(R) MPI Library 2021.14 for Linux* OS", "Intel(R) MPI Library 2021.14", "mpich", 2021),
    ],
)
def test_libraries_are_told_apart(text, name, family, major):
    found = find_mpi.Library(text, None)
    assert (found.name, found.family, found.major) == (name, family, major)


def test_a_machine_whose_name_has_no_address_is_named_to_the_launcher(tmp_path, monkeypatch):
    mpich, openmpi = (
        find_mpi.Library(version, tmp_path / "libmpi.so")
        for version in ("MPICH Version:      5.0.2 MPICH Release date: x", "Open MPI v5.0.11, package: x")
    )

    def unknown(name):
        raise OSError(f"{name}: Name or service not known")

    monkeypatch.setattr(find_mpi.socket, "gethostbyname", unknown)
    assert find_mpi.launcher_flags(mpich) == ["-localhost", "127.0.0.1"]
    assert find_mpi.launcher_flags(openmpi) == ["--bind-to", "none"]
    monkeypatch.setattr(find_mpi.socket, "gethostbyname", lambda name: "127.0.1.1")
    assert find_mpi.launcher_flags(mpich) == []


@pytest.mark.parametrize("where", ["a module", "a launcher", "a launcher, 64 bits", "the loader"])
def test_the_machines_own_library_is_beside_its_launcher_or_where_the_loader_looks(
    tmp_path, monkeypatch, where
):
    folder = tmp_path / ("lib64" if "64" in where else "lib")
    folder.mkdir()
    (folder / "libmpi.so.12").touch()
    (tmp_path / "bin").mkdir()
    if "launcher" in where:
        (tmp_path / "bin" / "mpirun").touch()
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(
        f"#!/bin/sh\necho 2 libs\nprintf '\\tlibmpi.so.12 (libc6,x86-64) => {folder}/libmpi.so.12\\n'\n"
    )
    ldconfig.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{folder}" if where == "a module" else "")
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path / 'bin'}")
    monkeypatch.setattr(
        find_mpi.shutil, "which", lambda *_, **__: str(ldconfig) if where == "the loader" else None
    )
    assert find_mpi.system_library() == folder / "libmpi.so.12"
