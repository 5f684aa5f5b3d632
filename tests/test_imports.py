"""Modules import only from floors below theirs, and in no circle; `mgg --help` loads little."""

from __future__ import annotations

import graphlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from floors import FLOORS
from jobs import python

import mgg_hpc

PACKAGE = Path(mgg_hpc.__file__).parent
# What `import mgg_hpc` itself may reach, when it is asked for.
OFFERED = ("data.libraries", "errors", "nn", "training.checkpoints")
# Native modules, and the only modules that import them.
NATIVE = {"_host|_cuda|_shmem": r"runtime\.backends\..+|tools\.doctor", "_graph": r"data\.native"}
LARGE = ["torch", "mpi4py", "h5py", "numpy", "scipy", "sklearn", "safetensors", "rich"]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """All imports within the package, inside functions and for type checkers too."""
    return grimp.build_graph("mgg_hpc", cache_dir=None)


def test_no_modules_import_each_other_in_a_circle(imports):
    of = imports.find_modules_directly_imported_by
    modules = imports.modules - {
        "mgg_hpc"
    }  # for grimp it is what imports a native module, `from .. import _graph`
    graphlib.TopologicalSorter({name: of(name) & modules for name in modules}).prepare()


def test_no_module_imports_from_a_floor_above(imports):
    floors = [floor if isinstance(floor, set) else {floor} for floor in FLOORS]
    assert set.union(*floors) == {name.partition(".")[2] for name in imports.find_children("mgg_hpc")}
    for offered in imports.find_modules_directly_imported_by("mgg_hpc"):
        assert f"{offered}.".startswith(tuple(f"mgg_hpc.{name}." for name in OFFERED))
        imports.remove_import(importer="mgg_hpc", imported=offered)
    assert not imports.find_illegal_dependencies_for_layers(
        [{f"mgg_hpc.{n}" for n in floor} for floor in floors]
    )


def test_the_picture_of_the_floors_is_as_the_code():
    """docs/pictures/architecture.py writes it anew."""
    script = PACKAGE.parent / "docs" / "pictures" / "architecture.py"
    assert runpy.run_path(str(script))["svg"]() == script.with_suffix(".svg").read_text()


@pytest.mark.parametrize("native", NATIVE)
def test_native_modules_are_reached_through_the_seam(native):
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")
    }
    importing = {
        name for name, path in modules.items() if re.search(rf"\bimport .*\b({native})\b", path.read_text())
    }
    assert importing and not [name for name in importing if not re.fullmatch(NATIVE[native], name)]


def test_help_loads_nothing_large_and_lists_verbs_in_the_order_of_use():
    code = (
        "import sys; from mgg_hpc.__main__ import main; main(['submit', '--help']); code = main(['--help']); "
    )
    done = python("-c", code + "print(*sys.modules); sys.exit(code)")
    *text, names = done.stdout.splitlines()
    loaded = {name.partition(".")[0] for name in names.split()}
    assert "click" in loaded
    assert not loaded & set(LARGE)
    text = text[max(at for at, line in enumerate(text) if line.startswith("Usage:")) :]
    verbs = [line.split()[0] for line in text if line.startswith("  ") and not line.lstrip().startswith("-")]
    assert verbs[1:7] == ["generate", "import", "export", "info", "verify", "partition"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train none.toml", "none.toml: no such job file"),
        ("train job.toml", "none.h5 does not exist"),
        ("tune job.toml", "none.h5 does not exist"),
        ("launch -n 2 train job.toml", "none.h5 does not exist"),
        ("launch -n 2 train", "Missing argument 'JOB'"),
        ("launch -n 2 none.py", "none.py: no such program"),
        ("predict runs -o out.h5", "runs: holds no run"),
        ("resume runs", "runs: holds no run"),
        ("runs .", "holds no runs"),
    ],
)
def test_paths_are_looked_at_before_torch_and_mpi_are_loaded(tmp_path, words, said):
    (tmp_path / "job.toml").write_text('[graph]\nfile = "none.h5"\n[model]\nname = "gcn"\n')
    main = f"from mgg_hpc.__main__ import main; code = main({words.split()})"
    done = python(
        "-c", f"import os, sys; os.chdir({str(tmp_path)!r}); {main}; print(*sys.modules); sys.exit(code)"
    )
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not {"torch", "mpi4py"} & {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.sampled(0)
@pytest.mark.slow
@pytest.mark.parametrize("package", ["mgg_hpc", "mgg_hpc.nn"])
def test_what_a_package_offers_is_loaded_when_it_is_asked_for(package):
    code = (
        f"import sys, {package} as package; loaded = {{name.partition('.')[0] for name in sys.modules}}\n"
        f"assert not loaded & set({LARGE}), loaded & set({LARGE})\n"
        "for name in package.__all__: assert getattr(package, name) is not None and name in dir(package)\n"
        "assert 'torch' in sys.modules and not hasattr(package, 'nothing')"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_help_takes_less_than_three_tenths_of_a_second():
    """In processor time, which other work on the machine does not lengthen; the best of three."""
    command = [Path(sys.executable).with_name("mgg"), "--help"]
    seconds = []
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        text = process.stdout.read()
        _, process.returncode, used = os.wait4(process.pid, 0)
        seconds.append(used.ru_utime + used.ru_stime)
        assert process.returncode == 0
        assert text.startswith("Usage: mgg")
    assert min(seconds) < 0.3
