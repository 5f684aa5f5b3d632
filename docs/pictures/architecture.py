"""Draw architecture.svg: the floors of mgg_hpc, what they hold and import, as the code says.

    python docs/pictures/architecture.py

Floors are those that tests/test_imports.py checks, texts the first sentences of docstrings.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import grimp
from floors import FLOORS

from mgg_hpc.tools.plots import GRID, INK, MAIN, MUTED, SHADE

ROOT = Path(__file__).parents[2]
WIDTH, LEFT, TEXT, LINE = 480, 10, 118, 16  # pixels; TEXT: from LEFT to the descriptions
COLUMNS = 47  # characters of a line of a description
EVERYWHERE = {"config", "errors", "sizes"}  # whose imports are not said


class Part(NamedTuple):
    """A module or package of a floor: its name, what it holds, what it imports, and the packages in it."""

    name: str
    holds: str
    imports: str
    packages: list[str]


def sentence(name: str) -> str:
    """Return the first sentence of a module's docstring."""
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return text.replace("`", "").partition(". ")[0].rstrip(".")


def floors() -> list[list[Part]]:
    """Return the parts of each floor, from the top down."""
    imports = grimp.build_graph("mgg_hpc", cache_dir=None)
    packages = sorted(name for name in imports.modules if imports.find_children(name))
    for name in imports.find_children("mgg_hpc"):
        if imports.find_children(name):
            imports.squash_module(name)
    order = [name for floor in FLOORS for name in (sorted(floor) if isinstance(floor, set) else [floor])]

    def part(name: str) -> Part:
        whole = f"mgg_hpc.{name}"
        below = {each.rpartition(".")[2] for each in imports.find_modules_directly_imported_by(whole)}
        said = [each for each in order if each in below - EVERYWHERE - {name}]
        inner = [each for each in packages if each.startswith(f"{whole}.")]
        return Part(name, sentence(whole), ", ".join(said), inner)

    return [[part(name) for name in (sorted(f) if isinstance(f, set) else [f])] for f in FLOORS]


def svg() -> str:
    """Return the picture."""
    drawn, y = [], LEFT

    def write(x: int, y: int, text: str, style: str) -> None:
        drawn.append(f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>')

    for floor in floors():
        top, y = y, y + 6
        box = len(drawn)
        for part in floor:
            folders = {
                f"{each.split('.', 2)[2].replace('.', '/')}/": sentence(each) for each in part.packages
            }
            for label, text in {part.name: part.holds, **folders}.items():
                bold = f'font-weight="bold" fill="{MAIN}"' if label == part.name else f'fill="{INK}"'
                write(LEFT + 8, y + LINE - 4, label, bold)
                for line in textwrap.wrap(text, COLUMNS):
                    y += LINE
                    write(LEFT + TEXT, y - 4, line, f'fill="{INK}"')
            if part.imports:
                y += LINE
                write(LEFT + TEXT, y - 4, f"imports {part.imports}", f'fill="{MUTED}"')
            y += 6
        size = f'width="{WIDTH - 2 * LEFT}" height="{y - top}"'
        drawn.insert(box, f'<rect x="{LEFT}" y="{top}" {size} rx="6" fill="{SHADE}" stroke="{GRID}"/>')
        y += 6
    size = f'width="{WIDTH}" height="{y + 4}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {y + 4}" '
    head += 'font-family="Helvetica, Arial, sans-serif" font-size="12.5">'
    title = "<title>The floors of mgg_hpc: each imports only from those below it</title>"
    return "\n".join([head, title, f'<rect {size} rx="8" fill="white"/>', *drawn, "</svg>\n"])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(svg())
