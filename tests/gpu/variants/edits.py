"""Changes of the native sources, by the text that stands there, and copies of the sources that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Edit:
    """A text of a source in cuda/, which is there once, and what stands in its place."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The source with the fault. Raises ValueError where the source has changed."""
        if text.count(self.old) != 1:
            count = text.count(self.old)
            raise ValueError(f"{self.file}: {self.old!r} is there {count} times; expected once")
        return text.replace(self.old, self.new)


def edited(edits: Iterable[Edit]) -> dict[str, str]:
    """The changed sources, by their names in cuda/. Raises ValueError where a source is not what an edit expects."""
    found: dict[str, str] = {}
    for edit in edits:
        found[edit.file] = edit.applied(found.get(edit.file, (ROOT / "cuda" / edit.file).read_text()))
    return found


def copy_sources(folder: Path, changed: Mapping[str, str]) -> None:
    """Copy what CMake needs into a folder, some of the sources with another text. What is the same keeps its time."""
    changes = {Path("cuda", file): text for file, text in changed.items()}
    wanted = {path.relative_to(ROOT): path for path in (ROOT / "CMakeLists.txt", *(ROOT / "cuda").rglob("*"))}
    for name, path in wanted.items():
        if path.is_dir():
            continue
        text = changes.get(name, path.read_text())
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_text() != text:
            copy.write_text(text)
    for path in (folder / "cuda").rglob("*"):
        if path.relative_to(folder) not in wanted:
            path.unlink()
