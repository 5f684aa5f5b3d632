"""Which random faults in the package the tests of their folder find: `make mutants`, docs/testing.md.

A place in a folder's Python files is drawn, then one of the changes that cosmic-ray makes there; in C++ files, a
textual one. The fault is planted in a copy of the tree. Of the folder's tests those run that execute the line, as
coverage.py has recorded: the shortest of each function, then all, then those over MPI. Lines of C++ are not recorded:
all tests of less than two seconds run. When it runs again it tries what was not found, and what it has not tried yet.
build/mutants has results.jsonl, and a diff for each survivor.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "mutants"
TREE, RESULTS = OUT / "tree", OUT / "results.jsonl"
RANKS, NATIVE_SHARE = "3", 0.13
# Folders of the package, and of their tests over MPI those that lie elsewhere.
FOLDERS = {
    "data": (),
    "plan": (),
    "runtime": ("tests/mpi/test_mpi.py", "tests/mpi/test_shm.py", "tests/mpi/test_shared_graph.py"),
    "nn": (),
    "training": ("tests/mpi/test_commands.py", "tests/mpi/test_counted.py"),
    "traversal": (),
}
NEEDS_GPU = re.compile(r"backends/cuda|training/cuda_graph")  # tests/shim/test_planted.py plants faults there
# C++ files, by how their names begin, and the folders whose tests are to find their faults.
NATIVE = {
    "cpu/traversal": ("traversal",),
    "graph/check_traversal": ("traversal",),
    "graph/local_graph": ("traversal",),
    "cpu/sampling": ("nn", "runtime", "training"),
    "cpu": ("nn", "runtime"),
    "graph/parse": ("data",),
    "graph": ("data", "plan"),
    "runtime/streaming": ("runtime",),
    "runtime/halo_exchange": ("runtime",),
}
SWAPPED = "< <=, <= <, > >=, >= >, == !=, != ==, && ||, || &&, + -, - +, * +, / *, += -=, % /"
OPERATORS = [
    (f" {re.escape(old)} ", f" {new} ") for old, new in (pair.split() for pair in SWAPPED.split(", "))
] + [
    (r"(?<![\w.'])0(?![\w.'])", "1"),
    (r"(?<![\w.'])1(?![\w.'])", "0"),
    (r"\+\+|--", ""),
    (r"(?<=[(\s])!(?=[\w(])", ""),
    (r"\bcontinue;", "break;"),
    (r"\bmin(?=[(<])", "max"),
]
# No operator touches comments, texts, the preprocessor, and what is checked by the compiler or thrown.
NO_CODE = re.compile(r'//.*|"(?:\\.|[^"\\])*"|^\s*#.*|\b(?:static_assert|throw|template|using)\b[^;{]*', re.M)


class Place(NamedTuple):
    """A place in a file, and its changes: (operator, occurrence) of cosmic-ray, or (start, end, new text).

    line: 0 outside of functions and in C++, where all tests of the file are tried.
    """

    file: str
    folders: tuple[str, ...]
    line: int
    changes: list[tuple]


def python_places() -> Iterator[Place]:
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    made = [(name, plugins.get_operator(name)) for name in plugins.operator_names()]
    operators = [(name, operator()) for name, operator in made if not operator.arguments()]
    for path in [path for folder in FOLDERS for path in sorted((TREE / "mgg_hpc" / folder).rglob("*.py"))]:
        file = str(path.relative_to(TREE))
        nodes = list(ast_nodes(get_ast_from_path(path)))
        tree = ast.parse(path.read_text())
        changes = defaultdict(list)
        for name, operator in operators if not NEEDS_GPU.search(file) else ():
            positions = (position for node in nodes for position in operator.mutation_positions(node))
            for occurrence, (start, end) in enumerate(positions):
                changes[start, end].append((name, occurrence))
        excluded = list(no_place(tree))
        bodies = [
            (node.body[0].lineno, node.end_lineno)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
        ]
        for (start, _), each in sorted(changes.items()):
            if not any(first <= start < last for first, last in excluded):
                line = start[0] if any(first <= start[0] <= last for first, last in bodies) else 0
                folders = {file.split("/")[1]: None} | ({"traversal": None} if "traversal" in file else {})
                yield Place(file, tuple(folders), line, each)


def native_places() -> Iterator[Place]:
    for path in sorted((TREE / "cuda").rglob("*.*")):
        name = str(path.relative_to(TREE / "cuda"))
        folders = next((folders for prefix, folders in NATIVE.items() if name.startswith(prefix)), None)
        code = (
            NO_CODE.sub(lambda found: re.sub(r"[^\n]", "\0", found[0]), path.read_text()) if folders else ""
        )
        for pattern, new in OPERATORS:
            for found in re.finditer(pattern, code):
                yield Place(f"cuda/{name}", folders, 0, [(*found.span(), new)])


def span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def no_place(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the spans of annotations, of texts with values in them, and of what is raised or for type checkers."""
    for node in ast.walk(tree):
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        texts = [node] if typing or isinstance(node, ast.JoinedStr | ast.Raise) else []
        notes = [getattr(node, name, None) for name in ("annotation", "returns")]
        marks = [
            each
            for each in getattr(node, "decorator_list", ())
            if getattr(each, "id", "") in ("overload", "final")
        ]
        yield from (span(each) for each in [*texts, *notes, *marks] if each is not None)


class Recorder:
    """A pytest plugin: what a test executes, in all of its processes, is recorded under its name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid):
        os.environ["MUTANTS_TEST"] = nodeid
        coverage.Coverage.current().switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration if report.passed else float("inf")

    def pytest_sessionfinish(self):
        if os.environ.get("PMI_RANK", "0") == "0":
            Path(os.environ["MUTANTS_SECONDS"]).write_text(json.dumps(self.seconds))


def run(tests: Iterable[str], *options: str, mpi: bool, limit: float, **variables: str) -> int:
    """Run tests in the copy and return pytest's exit code, or 124 after ``limit`` seconds."""
    (OUT / "tests.txt").write_text("\n".join(tests))
    shutil.rmtree(OUT / "tmp", ignore_errors=True)
    (OUT / "tmp").mkdir()
    data = os.environ.get("MGG_DATA") or str(ROOT.parent / "shared" / "data")
    variables |= {
        "PYTHONPATH": str(TREE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive",
        "MGG_DATA": data,
    }
    variables |= {"PYTEST_DEBUG_TEMPROOT": str(OUT / "tmp"), "OMP_NUM_THREADS": "1" if mpi else "2"}
    started = [sys.executable, "-P", *(["-m", "mpi4py"] * mpi), ROOT / "tests" / "mutants.py", "tests"]
    launcher = []
    if mpi:
        launcher = [Path(sys.executable).with_name("mpiexec"), "-n", RANKS]
        variables |= {"MGG_TEST_RANKS": RANKS}
    options = ("-qx", "-p", "no:cacheprovider", "--timeout", "120", *(["--with-mpi"] * mpi), *options)
    command = [*launcher, *started, *options, f"@{OUT / 'tests.txt'}"]
    with (OUT / "log.txt").open("w") as log:
        streams = {"stdout": log, "stderr": log, "start_new_session": True}
        done = subprocess.Popen(command, cwd=TREE, env=os.environ | variables, **streams)
        try:
            return done.wait(limit)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(done.pid, signal.SIGKILL)
            done.wait()


def of_folders(folders: Iterable[str], mpi: bool) -> list[str]:
    return [f"tests/{'mpi/' * mpi}{name}/" for name in folders] + [
        f for name in folders for f in FOLDERS[name] if mpi
    ]


class Tests:
    """Tests of one process, or over MPI: the seconds that each takes, and which execute a line of a file."""

    def __init__(self, mpi: bool) -> None:
        self.mpi = mpi
        settings, folder = OUT / "coveragerc", OUT / ("coverage-mpi" if mpi else "coverage")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        settings.write_text(
            f"[run]\nparallel = True\nsigterm = True\nsource = {TREE / 'mgg_hpc'}\ndata_file = {folder / '.coverage'}\n"
            "context = ${MUTANTS_TEST-}\n"
        )
        variables = {"COVERAGE_PROCESS_START": str(settings), "MUTANTS_SECONDS": str(folder / "seconds")}
        there = [name for name in of_folders(FOLDERS, mpi) if (TREE / name).exists()]
        run(there, "--maxfail=99", mpi=mpi, limit=7200, **variables)
        seconds = json.loads((folder / "seconds").read_text())
        self.seconds = {name: each for name, each in seconds.items() if each < 1e6}  # those that pass
        whole = coverage.Coverage(config_file=str(settings))
        whole.combine([str(folder)])
        data = whole.get_data()
        self.executed = {
            str(Path(file).relative_to(TREE)): data.contexts_by_lineno(file) for file in data.measured_files()
        }

    def find(self, place: Place) -> bool:
        """Return whether the fault that is in the tree is found."""
        by_line = self.executed.get(place.file, {})
        # A line within a statement is recorded, or the statement's first one is.
        lines = [max((line for line in by_line if line <= place.line), default=0)] if place.line else by_line
        chosen = {name for line in lines for name in by_line.get(line, ())}
        if not place.file.endswith(".py"):
            chosen = {name for name, seconds in self.seconds.items() if seconds < 2}
        folders = tuple(of_folders(place.folders, self.mpi))
        tests = sorted(name for name in chosen & self.seconds.keys() if name.startswith(folders))
        shortest: dict[str, str] = {}
        for name in sorted(tests, key=self.seconds.__getitem__):
            shortest.setdefault(name.partition("[")[0], name)
        first = sorted(shortest.values())
        limit = 90 + 10 * sum(map(self.seconds.__getitem__, tests))
        code = run(dict.fromkeys(first + tests), mpi=self.mpi, limit=limit) if tests else 0
        if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"tests of {place.file} did not run: {OUT / 'log.txt'}")
        return code != 0


def compiles(path: Path) -> bool:
    """Return whether a file with a fault is Python, or compiles for one instruction set; modules go into the copy."""
    if path.suffix == ".py":
        with contextlib.suppress(SyntaxError):
            return bool(ast.parse(path.read_text()))
        return False
    build, tool = OUT / "native", Path(sys.executable).with_name
    defined = {
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "Python_EXECUTABLE": sys.executable,
        "MGG_ISAS": "baseline",
    }
    defined |= {"MGG_CUDA": "OFF", "CMAKE_CXX_FLAGS_RELEASE": "-O1"}
    given = [f"-D{name}={value}" for name, value in defined.items()]
    if not (build / "build.ninja").exists():
        subprocess.run(
            [tool("cmake"), "-GNinja", *given, "-S", TREE, "-B", build], check=True, capture_output=True
        )
    done = subprocess.run([tool("ninja"), "-C", build, "_host", "_graph"], capture_output=True, check=False)
    for module in build.glob("_*.so") if done.returncode == 0 else ():
        shutil.copy2(module, TREE / "mgg_hpc")
    return done.returncode == 0


def changed_by(change: tuple, text: str) -> str:
    from cosmic_ray import mutating, plugins

    if isinstance(change[0], str):
        operator, occurrence = change
        return mutating.mutate_code(text, plugins.get_operator(operator)(), occurrence)
    start, end, new = change
    return text[:start] + new + text[end:]


def table(done: Iterable[dict]) -> str:
    """Return a table of faults found, of those planted that compile, by folder."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for each in done:
        for name in (each["folder"], "all"):
            counts[name][each["found"]] += each["found"] != "compiler"
    lines = [f"{'':10} found   of  over MPI"]
    for name, count in counts.items():
        total, found = count.total(), count.total() - count[""]
        lines.append(f"{name:10} {found:5} {total:4} {count['MPI']:9} {found / max(1, total):5.0%}")
    return "\n".join(lines)


def main() -> None:
    """Draw faults, try each, and print how many the tests of each folder find."""
    parser = argparse.ArgumentParser(description="Which random faults the tests of their folder find.")
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.mutants < 1:
        parser.error(f"--mutants {given.mutants}: expected 1 or more")
    shutil.rmtree(TREE, ignore_errors=True)
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if not (ROOT / name).exists():  # removed, and not committed yet
            continue
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, TREE / name)
    for module in (ROOT / "mgg_hpc").glob("_*.so"):
        shutil.copy2(module, TREE / "mgg_hpc")
    rng, native = random.Random(given.seed), round(NATIVE_SHARE * given.mutants)
    places = [(list(python_places()), given.mutants - native), (list(native_places()), native)]
    drawn = [place for there, count in places for place in rng.sample(there, min(count, len(there)))]
    # C++ comes last, file by file: its faults are in the modules until the next one is compiled.
    drawn = sorted(
        ((place, rng.choice(place.changes)) for place in drawn),
        key=lambda each: (each[0].file[0] == "c", each),
    )
    for old in OUT.glob("*.diff"):
        old.unlink()
    tests = {}
    for kind in ("one process", "MPI"):
        began, tests[kind] = time.time(), Tests(kind == "MPI")
        print(
            f"{len(tests[kind].seconds)} tests, {kind}: recorded in {time.time() - began:.0f} s", flush=True
        )
    before = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    found_before = {each["diff"]: each for each in before if each["found"]}
    done = []
    for number, (place, change) in enumerate(drawn):
        began, path = time.time(), TREE / place.file
        text = path.read_text()
        changed = changed_by(change, text)
        names = (f"a/{place.file}", f"b/{place.file}")
        diff = "\n".join(difflib.unified_diff(text.split("\n"), changed.split("\n"), *names, lineterm=""))
        one = {
            "file": place.file,
            "folder": "C++" if path.suffix != ".py" else place.folders[0],
            "diff": diff,
        }
        if diff in found_before:
            done.append(found_before[diff])
            continue
        path.write_text(changed)
        found = (
            next((kind for kind in tests if tests[kind].find(place)), "") if compiles(path) else "compiler"
        )
        path.write_text(text)
        done.append(one | {"found": found})
        with RESULTS.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        if not found:
            (OUT / f"{given.seed}-{number:03}.diff").write_text(diff + "\n")
        print(
            f"{number + 1}/{len(drawn)} {time.time() - began:4.0f} s {found or 'SURVIVES':11} {place.file}",
            flush=True,
        )
    print(table(done))


if __name__ == "__main__":
    if sys.argv[1:2] == ["tests"]:
        sys.path.insert(0, str(Path.cwd()))  # mpi4py takes the first entry away
        recorders = [Recorder()] if "COVERAGE_PROCESS_START" in os.environ else []
        sys.exit(pytest.main(sys.argv[2:], plugins=recorders))
    main()
