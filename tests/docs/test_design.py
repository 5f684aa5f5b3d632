"""docs/design.md, "To add a ...": the files that it names exist, and what is to be entered in them stands there."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("mgg_hpc", "cuda", "tests", "docs", "benchmarks")
TEXT = (ROOT / "docs" / "design.md").read_text()
PARAGRAPHS = {
    re.search(r"\*\*(.+?)\*\*", text)[1].replace("\n", " "): text
    for text in TEXT.split("\n\n")
    if text.startswith("To add a ")
}
FILE = re.compile(r"[\w/]+\.(?:py|h|cpp|cu|cuh|cmake|md|txt)|[\w/]+/[\w/]*")


def paths() -> list[Path]:
    """Return the project's files and folders, relative to its root."""
    everything = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [path.relative_to(ROOT) for path in everything if "__pycache__" not in path.parts]


def named(name: str, existing: list[Path]) -> list[Path]:
    """Return what a name stands for: a path, or the end of one. NAME stands for any name."""
    pattern = name.rstrip("/").replace("NAME", "*")
    return [path for path in existing if fnmatch(str(path), pattern) or fnmatch(str(path), f"*/{pattern}")]


def unknown(text: str) -> list[str]:
    """Return the names in backticks that are neither files nor found as whole words in a file that the text names."""
    existing = paths()
    names = [name.replace("\n", " ") for name in re.findall(r"`([^`]+)`", text)]
    names = [name for name in names if not name.startswith(("grep ", "python "))]  # commands
    files = {name: named(name, existing) for name in names if FILE.fullmatch(name)}
    sources = [
        path.read_text() for found in files.values() for path in map(ROOT.joinpath, found) if path.is_file()
    ]
    words = [name for name in names if name not in files]
    missing = [
        word for word in words if not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", s) for s in sources)
    ]
    return [name for name, found in files.items() if not found] + missing


SUBJECTS = [
    "format of graphs",
    "generator",
    "layer",
    "transport for CPUs",
    "transport for GPUs",
    "library to compare with",
    "benchmark",
]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_is_to_be_added_to_is_there(subject):
    assert not unknown(PARAGRAPHS[subject])


def test_the_way_from_a_command_to_the_kernel_names_functions_that_are_there():
    chain = re.search(r"## From mgg train to the kernel\n(.*?)\n## ", TEXT, re.DOTALL)[1]
    found = re.findall(r"([\w/]+\.py): ((?:[\w.]+(?:, | or )?)+)", chain)
    assert len(found) > 20
    for file, names in found:
        text = (ROOT / "mgg_hpc" / file).read_text()
        for name in re.findall(r"[\w.]+", names.replace(" or ", ", ")):
            owner, _, method = name.rpartition(".")
            body = (
                re.search(rf"^class {owner}\b.*?(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)[0]
                if owner
                else text
            )
            assert re.search(rf"^ *(def|class) {method}\b", body, re.MULTILINE), f"{file}: {name}"
