"""Options and helpers that the commands share."""

from __future__ import annotations

import functools
import glob
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import click

from .. import sizes
from ..errors import did_you_mean

# What shells offer for arguments and options of these names: files of an ending, or folders.
ENDINGS = {"graph": ".h5", "job": ".toml", "jobs": ".toml"} | dict.fromkeys(("run", "runs", "folder"), "/")


class _Existing(click.Path):
    """A path of an existing file or folder. Commands themselves report one that is missing."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        return completed(incomplete, ENDINGS.get(param.name or "", ""))


def completed(incomplete: str, ending: str) -> list[Any]:
    """Return the shell's completions of a path: the files with an ending, or if there are none, any paths.

    incomplete: the beginning of the path. ending: such as ".h5"; "/" for folders.
    """
    from click.shell_completion import CompletionItem

    if ending == "/":
        return [CompletionItem(incomplete, type="dir")]
    pattern = f"{glob.escape(incomplete)}*{ending}"
    paths = glob.glob(pattern) if ending else []  # noqa: PTH207 - as they were typed
    found = [CompletionItem(path) for path in sorted(paths) if Path(path).is_file()]
    return found or [CompletionItem(incomplete, type="file")]


Existing = _Existing(path_type=Path)
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


class Fanouts(click.ParamType):
    """Comma-separated numbers of edges to draw of each row, one for each layer; -1 for all."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        try:
            found = [int(word) for word in value.split(",")]
        except ValueError:
            found = [0]
        if any(each < -1 or each == 0 for each in found):
            self.fail(
                f"{value!r}; expected such as 15,10,5, each at least 1, or -1 for all edges", param, ctx
            )
        return found


class Choice(click.Choice[str]):
    """A choice of words that suggests the right one for a misspelt word."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            ask = did_you_mean(str(value), self.choices)
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self.choices))}{ask}", param, ctx)


class Finite(click.FloatRange):
    """A range of finite numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Verbs(click.Group):
    """A group that lists its commands in the order of definition, below headings, and suggests similar names.

    headings: the heading above a command and those after it, by the name of the command.
    """

    headings: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        heading, width = "Commands", max(map(len, self.commands))
        for name, command in self.commands.items():
            heading = self.headings.get(name, heading)
            line = name.ljust(width), command.get_short_help_str(formatter.width - 6 - width)
            sections.setdefault(heading, []).append(line)
        for title, lines in sections.items():
            with formatter.section(title):
                formatter.write_dl(lines)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            known = f"; there are {', '.join(self.commands)}" if not self.headings else ""
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], self.commands) or known}")
        return super().resolve_command(ctx, args)


def together(*options: Any) -> Callable[[Any], Any]:
    """Return a decorator that adds several options to a command, which its help shows in this order."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


def example(*lines: str) -> str:
    """Return an epilog that click prints unchanged, one example a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def to_file(help: str) -> Callable[[Any], Any]:
    """Return a decorator that adds --output and --force to a command."""
    output = click.option("-o", "--output", type=Output, required=True, help=help)
    return together(output, click.option("--force", is_flag=True, help="Replace the output if it exists."))


def overriding(help: str) -> Callable[[Any], Any]:
    """Return a decorator that adds --set to a command."""
    return click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help=help)
