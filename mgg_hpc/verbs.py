"""What the verbs of the command line share."""

from __future__ import annotations

from pathlib import Path

import click

Existing = click.Path(path_type=Path)
Output = click.Path(path_type=Path)


class Verbs(click.Group):
    """Lists verbs in the order in which a user meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def example(*lines: str) -> str:
    """An epilog that click prints as it stands, one example a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
