"""The page around the report's figures: HTML5 without scripts, links or files of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c1c1c; --faint: #d6d6d6; --said: #555555; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #17191c; --ink: #e8e8e8; --faint: #44484d; --said: #b0b4b8; }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; max-width: 64rem;
  margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; } p { margin: .4rem 0; }
.said { color: var(--said); font-size: .88rem; }
.scroll, figure { overflow-x: auto; }
table { width: max-content; max-width: 64rem; border-collapse: collapse; font-size: .88rem;
  font-variant-numeric: tabular-nums; margin: .4rem 0; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--faint); text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--said); }
tr.differs td { font-weight: 600; }
figure { background: #ffffff; color: #1c1c1c; border-radius: 4px; margin: .6rem 0; padding: .4rem; }
figure svg { width: 100%; min-width: 40rem; height: auto; display: block; }
@media print {
  body { margin: 0; max-width: none; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; }
  .scroll, figure { overflow-x: visible; } figure svg { min-width: 0; } table { max-width: 100%; font-size: .75rem; }
}
"""


@dataclass
class Section:
    """A part of the page: paragraphs, tables and figures below a heading, in order."""

    title: str
    parts: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Add a paragraph of remarks."""
        self.parts.append(f'<p class="said">{escape(text)}</p>')

    def figure(self, svg: str) -> None:
        """Add a figure, an SVG element."""
        self.parts.append(f"<figure>{svg}</figure>")

    def table(
        self, head: Sequence[str], rows: Iterable[Sequence[str]], marked: frozenset[int] = frozenset()
    ) -> None:
        """Add a table. marked: numbers of rows that stand out."""
        cells = "".join(f"<th>{escape(each)}</th>" for each in head)
        lines = []
        for number, row in enumerate(rows):
            mark = ' class="differs"' if number in marked else ""
            lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>")
        body = "\n".join(lines)
        self.parts.append(
            f'<div class="scroll"><table><thead><tr>{cells}</tr></thead>\n<tbody>{body}</tbody></table></div>'
        )


def assembled(title: str, said: str, sections: Iterable[Section]) -> str:
    """Return the page."""
    parts = [
        f"<section><h2>{escape(each.title)}</h2>\n" + "\n".join(each.parts) + "\n</section>"
        for each in sections
        if each.parts
    ]
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n"
        f'<body><h1>{escape(title)}</h1>\n<p class="said">{escape(said)}</p>\n{body}\n</body></html>\n'
    )
