"""Modules import only from floors below theirs, and in no circle; folders are small; `mgg --help` loads little."""

from __future__ import annotations

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import python

import mgg_hpc

PACKAGE = Path(mgg_hpc.__file__).parent
FLOORS = ["data", "plan", "runtime", "nn", "traversal", "training", "tools", "cli"]  # from the ground up
BESIDE = {"nn", "traversal"}  # on the same floor
GROUND = ["__init__", "errors", "sizes", "config"]  # what every floor may stand on
# What the package itself offers, to be loaded when it is asked for.
DOORS = ["data.libraries", "nn", "training.checkpoints"]
COMMAND_LINE = ["__main__"]  # stands on top
# Reached through the seam alone; `mgg doctor` looks at it too.
NATIVE = ("_host", "_cuda", "_shmem")
GRAPH = "_graph"  # native code that needs no backend, reached through data.native alone
LARGE = ["torch", "mpi4py", "h5py", "numpy", "scipy", "sklearn", "safetensors", "rich"]


def imported(source: str, module: str) -> set[str]:
    """The modules of this package that a module's text imports, inside functions too, as dotted names.

    ``module`` is the importing module's dotted name within the package, "a.__init__" for a package's own.
    ``from . import name`` counts as importing the module ``name``, since the text cannot tell whether it is one.
    """
    found = set()
    parts = module.split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name.removeprefix("mgg_hpc.") for a in node.names if a.name.startswith("mgg_hpc.")}
            found |= {"__init__" for a in node.names if a.name == "mgg_hpc"}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*parts[: len(parts) - node.level], *filter(None, [node.module])]
            elif (node.module or "").split(".")[0] == "mgg_hpc":
                base = (node.module or "").split(".")[1:]
            else:
                continue
            found |= {".".join([*base, a.name]) for a in node.names}
    return found


def room(name: str) -> str:
    """The floor of a dotted name, or the module itself where it lies on no floor."""
    return name.partition(".")[0]


def violation(importer: str, target: str) -> bool:
    """Whether a module of one room may not import from another."""
    here, there = room(importer), room(target)
    if here == there or here in COMMAND_LINE:
        return False
    if there in (*NATIVE, GRAPH):
        seam = importer.startswith("runtime.backends.") or importer == "tools.doctor"
        return importer != "data.native" if there == GRAPH else not seam
    if there in FLOORS:
        if here == "__init__":
            return not any(f"{target}.".startswith(f"{door}.") for door in DOORS)
        return here not in FLOORS or FLOORS.index(there) > FLOORS.index(here) or {here, there} == BESIDE
    # What is neither floor nor ground is a name of the package itself (__version__), or the command line.
    return there not in GROUND and (PACKAGE / f"{there}.py").exists()


def modules() -> dict[str, str]:
    """Dotted names and texts of all modules."""
    files = [path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts]
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text() for path in files}


def imports_of_all(texts: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports from, those for type checkers included."""
    names = {name.removesuffix(".__init__") for name in texts}

    def module_of(target: str) -> str:
        if target in names or target in (*NATIVE, GRAPH):
            return target
        return module_of(target.rpartition(".")[0]) if target else "__init__"

    return {
        name.removesuffix(".__init__"): {module_of(target) for target in imported(text, name)}
        for name, text in texts.items()
    }


def circle(texts: dict[str, str]) -> list[str]:
    """A circle of imports, the first module last too; [] without."""
    graph = imports_of_all(texts)
    try:
        graphlib.TopologicalSorter({name: targets - {name} for name, targets in graph.items()}).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other_in_a_circle():
    assert not circle(modules())


def test_the_check_sees_a_circle():
    texts = {
        "__init__": "",
        "plan.a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B",
        "plan.b": "def f():\n    from ..plan import c",
        "plan.c": "from . import a",
    }
    assert set(circle(texts)) == {"plan.a", "plan.b", "plan.c"}
    assert not circle(texts | {"plan.c": "from .. import __version__"})


def test_floors_are_what_the_package_holds():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(FLOORS)
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert files == {*GROUND, *COMMAND_LINE}


def test_no_module_imports_from_a_floor_above():
    found = [
        f"{name} imports {target}"
        for name, text in modules().items()
        for target in sorted(imported(text, name))
        if violation(name, target)
    ]
    assert not found


@pytest.mark.parametrize(
    ("module", "text", "target"),
    [
        ("plan.workload", "from ..runtime import mpi", "runtime.mpi"),
        ("data.readers.npz", "from ...plan.ranges import owner_of", "plan.ranges.owner_of"),
        ("data.readers.__init__", "from ...nn.layers import conv", "nn.layers.conv"),
        ("nn.layers.conv", "def f():\n    import mgg_hpc.training.train", "training.train"),
        ("traversal.runs", "from ..nn.graph import loading", "nn.graph.loading"),
        ("nn.api", "from ..traversal import part", "traversal.part"),
        ("traversal.runs", "from ..runtime import mpi", None),
        ("runtime.mpi", "def f():\n    from mgg_hpc import tools", "tools"),
        ("config", "from .data import graph", "data.graph"),
        ("tools.clean", "from .. import __main__", "__main__"),
        ("nn.layers.random", "def f():\n    from ... import _host", "_host"),
        ("tools.bench.aggregate", "from ... import _cuda", "_cuda"),
        ("errors", "if True:\n    from . import training as t", "training"),
        ("__init__", "from .training import train", "training.train"),
        ("__init__", "from .training.checkpoints.loop import checkpointed", None),
        ("training.train", "from ..nn.graph import GraphHandle\nfrom . import report\nimport torch", None),
        ("data.store", "from .header import DIGEST\nfrom ..errors import InputError", None),
        ("runtime.backends.host.kernels", "def f():\n    from ... import _host", None),
        ("tools.doctor", "from .. import __version__", None),
        ("__init__", "if TYPE_CHECKING:\n    from .nn.api import open_graph as open", None),
        ("__main__", "from .training.train import process_train", None),
    ],
)
def test_the_check_sees_violations_and_nothing_else(module, text, target):
    found = [name for name in imported(text, module) if violation(module, name)]
    assert found == [target] * (target is not None)


def test_help_loads_nothing_large_and_lists_verbs_in_the_order_of_use():
    code = "import sys; from mgg_hpc.__main__ import main; code = main(['--help']); print(*sys.modules); sys.exit(code)"
    done = python("-c", code)
    *text, names = done.stdout.splitlines()
    loaded = {name.partition(".")[0] for name in names.split()}
    assert "click" in loaded
    assert not loaded & set(LARGE)
    verbs = [line.split()[0] for line in text if line.startswith("  ") and not line.lstrip().startswith("-")]
    assert verbs[1:7] == ["generate", "import", "export", "info", "verify", "partition"]


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
