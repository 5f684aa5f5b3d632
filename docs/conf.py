"""Settings of the site that `make docs` builds from this folder (Sphinx: api.md comes from docstrings)."""

from __future__ import annotations

import re
from typing import Any

import click

import mgg_hpc
from mgg_hpc.__main__ import cli

project = "MGG-HPC"
version = release = mgg_hpc.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
highlight_language = "text"
smartquotes = False  # they would make one dash of two, in options

default_role = "py:obj"  # `name` in a docstring is a link where the site has the name
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

NAMED = re.compile(r"(?:^|(?<=[.\])] ))(?=(?:[a-z_]\w*(?:, )?)+: \S)|(?<=[.\])] )(?=Raises )")
OUTSIDE = re.compile(
    r"(?<!!)(\[[^\[\]]*\])\((?=(?:\.\./)+(?:benchmarks|cuda|examples|inputs|mgg_hpc|slurm|tests)/)"
)


def list_arguments(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Show "rows: [n, F]. heads: H." in docstrings as a list, an item for each name, and "Raises ..." after it."""
    shown: list[str] = []
    for paragraph in re.split(r"\n{2,}", "\n".join(lines).strip()):
        plain = not re.search(r"^[\s.:*-]|::$", paragraph, re.MULTILINE)
        parts = NAMED.split(paragraph.replace("\n", " ")) if plain else []
        if len(parts) < 2:
            shown += [*paragraph.split("\n"), ""]
            continue
        for part in filter(None, map(str.strip, parts)):
            names = re.match(r"((?:[a-z_]\w*(?:, )?)+): ", part)
            shown += [f"- **{names[1]}**: {part[names.end() :]}" if names else part, ""]
    lines[:] = shown


def name_aliases(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, signature: str, returned: str
) -> Any:
    """Show ArrayLike as it is written."""
    shown = signature and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature)
    return (shown, returned) if shown else None


def show_examples(_app: Any, context: Any, lines: list[str]) -> None:
    """Show the examples of a command as they are typed."""
    if context.command.epilog:
        lines[:] = ["Examples::", "", *(line.removeprefix("| ") for line in lines if "Examples:" not in line)]


def give_files(_app: Any, _name: str, source: list[str]) -> None:
    """Let links to the project's files outside of this folder give the file."""
    source[0] = OUTSIDE.sub(r"\1(path:", source[0])


def show_defaults(command: click.Command) -> None:
    """Show the defaults of options, which --help shows by a setting of the context."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag:
            option.show_default = isinstance(option.default, int | float | str)
    for each in getattr(command, "commands", {}).values():
        show_defaults(each)


def setup(app: Any) -> None:
    show_defaults(cli)
    app.connect("autodoc-process-docstring", list_arguments)
    app.connect("autodoc-process-signature", name_aliases)
    app.connect("sphinx-click-process-epilog", show_examples)
    app.connect("source-read", give_files)
