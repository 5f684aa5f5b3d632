"""The project's documents: their text, links, anchors and commands."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    """Return a page's path, relative to the project."""
    return str(page.relative_to(ROOT))


@cache
def prose(page: Path) -> str:
    """Return a page's text without its blocks of code."""
    return re.sub(r"^ {4}.*$", "", _FENCED.sub("", page.read_text()), flags=re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, by GitHub's rule."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {
        slug if not again else f"{slug}-{again}" for slug, times in found.items() for again in range(times)
    }


def links(page: Path) -> list[tuple[str, str]]:
    """Return the path and the anchor of each relative link and picture of a page."""
    found = re.findall(r"\]\(\s*([^)\s]+)\s*\)", prose(page))
    inside = [link for link in found if not re.match(r"[a-z]+:", link)]
    return [(path, anchor) for path, _, anchor in (link.partition("#") for link in inside)]


def code(page: Path) -> list[str]:
    """Return the lines of a page's blocks of code, fenced or indented; a line that ends with \\ goes on in the next."""
    text = page.read_text()
    fenced = [line for block in _FENCED.finditer(text) for line in block[0].split("\n")[1:-1]]
    indented = re.findall(r"^ {4,}(.*)$", _FENCED.sub("", text), re.MULTILINE)
    return re.sub(r"\\\n\s*", "", "\n".join([*fenced, *indented])).split("\n")


def spans(page: Path) -> list[str]:
    """Return the words of a page that are code within lines."""
    return [span.replace("\n", " ") for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]
