"""Draw tiers.svg: where the rows of a table lie, on a node of two ranks.

python docs/pictures/tiers.py
"""

from __future__ import annotations

from pathlib import Path

from mgg_hpc.tools.plots import COLOURS, INK, MUTED

WIDTH, HEIGHT, LEFT, ROW = 480, 330, 96, 18  # pixels; ROW: height of a row of the table
COLUMN, GAP = 166, 40  # width of a rank's memory, and between two
FILLS = {"near": "#b2e2d5", "peers": "#c7e0ee", "host": "#f6dda6", "file": "#eef2f5"}


def svg() -> str:
    """Return the picture."""
    drawn = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="white"/>']

    def write(x: float, y: float, text: str, style: str = 'text-anchor="middle"') -> None:
        drawn.append(f'<text x="{x}" y="{y}" {style}>{text}</text>')

    def rows(tier: str, x: int, y: int, width: int, names: list[str]) -> None:
        for number, name in enumerate(names):
            top = y + number * ROW
            size = f'width="{width}" height="{ROW - 2}" rx="3"'
            drawn.append(f'<rect x="{x}" y="{top}" {size} fill="{FILLS[tier]}" stroke="{MUTED}"/>')
            write(x + width / 2, top + 12.5, name)

    def said(y: int, tier: str, *lines: str) -> None:
        write(LEFT - 12, y, tier, 'text-anchor="end" font-weight="bold"')
        for number, line in enumerate(lines, 1):
            write(LEFT - 12, y + 14 * number, line, f'text-anchor="end" font-size="11" fill="{MUTED}"')

    both, second = 2 * COLUMN + GAP, LEFT + COLUMN + GAP
    for x, rank in ((LEFT, 0), (second, 1)):
        write(x + COLUMN / 2, 26, f"memory of rank {rank}", 'text-anchor="middle" font-weight="bold"')
        rows("near", x, 38, COLUMN, ["row A", "row B"])
        rows("peers", x, 88, COLUMN, [f"row {name}" for name in ("CE", "DF")[rank]])
    rows("host", LEFT, 148, both, [f"row {name}" for name in "GHI"])
    rows("file", LEFT, 226, both, ["row J", "row K", "row L", "..."])
    said(51, "near", "a copy on", "each rank")
    said(101, "peers", "dealt out")
    said(163, "host", "once a node")
    said(241, "file", "the rest")
    path = f"M{LEFT + COLUMN + 2},106 L{second - 3},106"
    marks = 'marker-start="url(#end)" marker-end="url(#end)"'
    drawn.append(f'<path d="{path}" stroke="{COLOURS[1]}" stroke-width="1.5" {marks}/>')
    down = f'stroke="{MUTED}" marker-end="url(#time)"'
    drawn.append(f'<path d="M{LEFT - 84},40 L{LEFT - 84},298" {down}/>')
    write(
        LEFT,
        318,
        "A is the row that batches read most often, B the next one",
        f'font-size="11" fill="{MUTED}"',
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
    head += f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">'
    title = "<title>Rows in tiers on two ranks: copies near, dealt to peers, once on the host, others in a file</title>"
    arrows = "".join(
        f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto-start-reverse">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
        for name, colour in (("end", COLOURS[1]), ("time", MUTED))
    )
    return "\n".join([head, title, f"<defs>{arrows}</defs>", *drawn, "</svg>\n"])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(svg())
