"""Damaged files of arrays and of text: `make` gives the same mutant for the same seed; as a module, it reads them."""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
from data.readers.formats import FORMATS, PACKINGS, TEXTS, opened, write

from damaged.mutants import changed
from damaged.watched import serve

Rng = np.random.Generator


def make(name: str, seed: int, path: Path) -> str:
    """Write the mutant of a seed to a file or a folder of this format, and return what was done."""
    rng = np.random.default_rng(seed)
    # Some texts are of several parts, which threads parse, and some archives are unpacked in several steps.
    content = FORMATS[name](rng, int(rng.choice([5, 40, 300, 10_000], p=[0.3, 0.3, 0.3, 0.1]))).content
    if isinstance(content, dict):
        file = str(rng.choice(sorted(content)))
        content[file], story = _mutant(content[file], rng, file)
        story = f"{file}: {story}"
    else:
        content, story = _mutant(content, rng, name)
    write(path, content)
    return f"seed {seed}: {story}"


def _mutant(data: bytes, rng: Rng, name: str) -> tuple[bytes, str]:
    """Change a file's bytes, before or after it is packed, or the arrays of an archive."""
    if name.endswith(".npz") and rng.random() < 0.7:
        return _changed_member(data, rng)
    how = "gzip" if name.endswith(".gz") else str(rng.choice(list(PACKINGS))) if name in TEXTS else "plain"
    outer = bytearray(gzip.decompress(data) if name.endswith(".gz") else data)
    before = how == "plain" or rng.random() < 0.6
    story = changed(outer, rng) if before else ""
    outer = bytearray(PACKINGS[how](bytes(outer)))
    return outer, f"{how}, {story or changed(outer, rng)}"


def _changed_member(data: bytes, rng: Rng) -> tuple[bytes, str]:
    """Change one array of an archive, and pack it again with a checksum that is right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: bytearray(archive.read(name)) for name in archive.namelist()}
    name, other = (str(rng.choice(sorted(members))) for _ in range(2))
    how = str(rng.choice(["bytes", "bytes", "bytes", "gone", "swapped"]))
    story = f"{how} of {name}"
    if how == "bytes":
        story += ": " + changed(members[name], rng)
    elif how == "gone":
        del members[name]
    else:
        members[name], members[other] = members[other], members[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", int(rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]))) as archive:
        for each, content in members.items():
            archive.writestr(each, bytes(content))
    return out.getvalue(), story


def check(path: Path) -> None:
    """Read everything in a file or folder, as an import does."""
    warnings.simplefilter("ignore")
    imported, text = opened(path), path.name in TEXTS
    limit = imported.edges.nodes or (10**15 if text else 2**63)
    for block in imported.edges.blocks():
        for ids in (block.sources, block.destinations):
            assert len(ids) and ids.min() >= 0
            # Of arrays, the build refuses those beyond.
            assert ids.max() < limit or (imported.edges.where and not text)
        assert block.weight is None or not text or np.isfinite(block.weight).all()
        assert all(len(values) == len(block) for values in block.data.values())
    rows = imported.rows() if callable(imported.rows) else imported.rows
    for each in rows.values():
        count = 0
        for piece in each.pieces():
            assert piece.dtype == each.layout.dtype and piece.shape[1:] == each.layout.shape[1:]
            count += len(piece)
        assert count == each.layout.shape[0]


if __name__ == "__main__":
    serve(check)
