"""Options and helpers that the commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .. import sizes

Existing = click.Path(path_type=Path)
Output = click.Path(path_type=Path)


class _Memory(click.ParamType):
    """A number of bytes: digits, and K, M, G or T for powers of 1,024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return sizes.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


Memory = _Memory()


class Finite(click.FloatRange):
    """A range of finite numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Verbs(click.Group):
    """A group that lists its verbs in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def example(*lines: str) -> str:
    """Return an epilog that click prints unchanged, one example a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def to_file(help: str) -> Callable[[Any], Any]:
    """Return a decorator that adds --output and --force to a command."""
    output = click.option("-o", "--output", type=Output, required=True, help=help)
    force = click.option("--force", is_flag=True, help="Replace the output if it exists.")
    return lambda command: output(force(command))


def overriding(help: str) -> Callable[[Any], Any]:
    """Return a decorator that adds --set to a command."""
    return click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help=help)
