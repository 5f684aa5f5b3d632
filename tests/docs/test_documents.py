"""README and docs/: links lead somewhere, every page is linked to, commands and their options exist."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from command import option_names, parsed
from documents import PAGES, ROOT, anchors, code, links, name, prose, spans

from mgg_hpc.__main__ import cli

PLACEHOLDER = re.compile(r"[A-Z]{3,}|\.\.\.|[<>\[|$*]")  # mgg COMMAND --help, mgg import ...
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page):
    broken = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tables_and_headings_stand_between_blank_lines(page):
    """Markdown would take what follows a table for a row of it."""
    lines = prose(page).split("\n")
    pairs = list(itertools.pairwise(lines))
    assert not [after for row, after in pairs if row.startswith("|") and after and not after.startswith("|")]
    assert not [heading for before, heading in pairs if re.match("#+ ", heading) and before]


def test_every_page_is_linked_to():
    linked = {
        (page.parent / path).resolve() for page in PAGES for path, _ in links(page) if path.endswith(".md")
    }
    roots = {ROOT / "README.md", ROOT / "docs" / "index.md"}
    assert not [name(page) for page in PAGES if page not in linked | roots]


@pytest.mark.parametrize("module", ["mgg_hpc", "mgg_hpc.nn", "mgg_hpc.nn.saga"])
def test_the_api_reference_has_every_public_name(module):
    text = (ROOT / "docs" / "api.md").read_text()
    if re.search(rf"automodule:: {module}\n   :members:\n", text):
        return
    public = importlib.import_module(module).__all__
    assert not [each for each in public if each != "nn" and not re.search(rf"\b{each}\b", text)]


def commands(line: str) -> list[tuple[str, list[str]]]:
    """Return the program and the arguments of each `mgg` and `python benchmarks/...` of a line."""
    found = []
    for part in re.split(r"&&|; | \| |\s#", line):
        match = re.search(r"(?:^|[\s/(])(?:(mgg)|python (benchmarks/[\w/]+\.py))((?: .*)?)$", part.strip())
        if match:
            try:
                found.append((match[1] or match[2], shlex.split(match[3])))
            except ValueError:  # words in prose, with an apostrophe
                found.append((match[1] or match[2], match[3].split()))
    return found


def program(path: str) -> click.Command:
    """Return the command of a script in benchmarks/."""
    # By its file, since tests have modules of the same names.
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def unknown(command: click.Command, arguments: list[str]) -> list[str]:
    """Return the commands and options of a command line that do not exist."""
    wrong, known = [], option_names(command) | {"--version"}
    for at, word in enumerate(arguments):
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word not in command.commands:
                return [] if PLACEHOLDER.search(word) else [*wrong, word]
            command = command.commands[word]
            known = option_names(command)
        elif not command.context_settings.get("allow_interspersed_args", True) and word in cli.commands:
            return [*wrong, *unknown(cli, arguments[at:])]
        elif word.startswith("benchmarks/"):
            return [*wrong, *unknown(program(word), arguments[at + 1 :])]
        elif re.match(r"--?[a-z]", word) and word.split("=")[0] not in known:
            wrong.append(word)
    return wrong


def wrong_words(page: Path, scripts: bool) -> list[str]:
    """Return the commands and options of a page that do not exist, of `mgg` or of scripts in benchmarks/."""
    wrong = []
    for line in [*code(page), *spans(page)]:
        for first, arguments in commands(line):
            if scripts == (first != "mgg"):
                root = program(first) if scripts else cli
                wrong += [f"{first} {' '.join(arguments)}: {each}" for each in unknown(root, arguments)]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_options_exist(page):
    assert not wrong_words(page, scripts=False)
    lines = [line.strip() for line in [*code(page), *spans(page)]]
    made = [re.match(r"(?:[A-Z_]+=\S+ )*make ((?:[A-Z_]+=\S+ )*)([a-z][a-z-]+)", line) for line in lines]
    assert not {match[2] for match in made if match} - TARGETS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_whole_commands_are_taken(page):
    """Each line of code that begins with `mgg` and has no placeholders is parsed by click."""
    for line in code(page):
        for first, arguments in commands(line):
            if (
                first == "mgg"
                and line.strip().startswith("mgg ")
                and not PLACEHOLDER.search(line.split(" #")[0])
            ):
                parsed(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_of_benchmarks_exist(page):
    assert not wrong_words(page, scripts=True)
