"""The command line, called in this process, in the current folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mgg_hpc.__main__ import cli, main


def mgg(*arguments: object) -> int:
    """The exit code of ``mgg`` with these arguments."""
    return main([str(argument) for argument in arguments])


def parsed(arguments: Sequence[str]) -> dict[str, object]:
    """Return what the command line takes of these arguments, without running it. Raises click.UsageError."""
    command: click.Command = cli
    context = click.Context(cli, info_name="mgg")
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    return command.make_context(name, list(arguments), parent=context).params


def option_names(command: click.Command) -> set[str]:
    """Return the names of a command's options."""
    options = (each for each in command.params if isinstance(each, click.Option))
    return {"-h", "--help"}.union(*([*each.opts, *each.secondary_opts] for each in options))


def refused(capsys, *arguments: object) -> str:
    """The one line on stderr of a command that ends with 2, prints nothing else and leaves every file as it was."""
    before = {path: path.read_bytes() for path in Path().iterdir()}
    capsys.readouterr()
    assert mgg(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mgg: error: ") and err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path().iterdir()} == before
    return err.removeprefix("mgg: error: ").strip()


def tables(capsys) -> tuple[list[list[str]], list[str]]:
    """What was printed: lines of cells of tables, and other lines."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    rows = [[cell.strip() for cell in line[1:-1].split(line[0])] for line in lines if line[:1] in ("│", "┃")]
    return rows, [line.strip(' ",') for line in lines if not set(line) & set("│┃━─")]
