"""Draw pictures of results from their tables alone, as .png beside them.

python benchmarks/draw.py docs/studies/*.csv docs/studies/*/*.csv benchmarks/results/{aggregate,epoch}/*.json
"""

from __future__ import annotations

from pathlib import Path

import click
from harness import command, run
from harness.plots import draw, read


@command(__doc__)
@click.argument("tables", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(tables: tuple[Path, ...]) -> None:
    for path in tables:
        read(path).write([path.with_suffix(".png")], draw)


if __name__ == "__main__":
    run(main)
