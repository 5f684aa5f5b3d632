"""Arguments and options of several benchmarks. What is wrong in them is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import click

from harness import graphs
from harness.results import words_of
from mgg_hpc.sizes import numbers_of

WIDTH = click.IntRange(1, 65536)  # columns of rows


def graph_names(*default: str, check: Callable[[str], None] = graphs.check) -> Any:
    """Add the argument ``names``, of graphs. default: where none are given. check: refuses other names."""

    def checked(_context: Any, _argument: Any, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names or default:
            check(name)
        return names or default

    return click.argument("names", nargs=-1, metavar="[GRAPH]...", callback=checked)


def numbers(name: str, default: str, what: str) -> Any:
    """Add an option of comma-separated numbers, which the command takes as a list."""
    return _listed(name, default, what, numbers_of)


def words(name: str, known: Collection[str], what: str, default: str = "") -> Any:
    """Add an option of comma-separated words, which the command takes as a list. default: "" for all that are known."""
    return _listed(name, default or ",".join(known), what, partial(words_of, known=known))


def _listed(name: str, default: str, what: str, parse: Callable[[str, str], Any]) -> Any:
    def parsed(_context: Any, _option: Any, given: str) -> Any:
        return parse(name, given)

    return click.option(f"--{name}", default=default, help=what, callback=parsed)


def turns(default: int) -> Any:
    """Add the option --turns."""
    what = "Timed turns of each variant."
    return click.option("--turns", type=click.IntRange(1), default=default, help=what)


def threads(what: str = "Of each process. [default: all cores]") -> Any:
    """Add the option --threads."""
    return click.option("--threads", type=click.IntRange(1, 1024), help=what)


def folder() -> Any:
    """Add the option --folder."""
    kind = click.Path(path_type=Path, exists=True, file_okay=False)
    return click.option("--folder", type=kind, help="For scratch files. [default: temporary]")
