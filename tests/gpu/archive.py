"""All that the parts of `make gpu-contact`, `gpu-test` and `gpu-bench` have written, as one archive of three files.

RESULTS.tar.gz has results.json (every document by its name), results.md (every table) and results.log (what each part
printed). Parts that were ended on their way are in it, too.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path


def write(results: Path) -> Path:
    """Write the archive beside the folder of results: whole, or not at all. Return its path."""
    files = {path.name: path for path in sorted((results / "running").glob("*")) if path.suffix != ".part"}
    files |= {path.name: path for path in sorted(results.glob("*.*"))}
    documents = {}
    for path in (path for name, path in files.items() if name.endswith(".json")):
        try:
            documents[path.stem] = json.loads(path.read_text())
        except ValueError:  # a part was ended while it wrote
            continue
    tables = [path.read_text().strip() for name, path in files.items() if name.endswith(".md")]
    logs = [
        f"==== {path.stem}\n{path.read_text(errors='replace')}"
        for name, path in files.items()
        if name.endswith(".log")
    ]
    head = {"format": "mgg-gpu-results", "version": 1, "documents": documents}
    texts = {
        "results.json": json.dumps(head, indent=1),
        "results.md": "\n\n".join(tables) + "\n",
        "results.log": "\n".join(logs),
    }
    target = results.with_name(f"{results.name}.tar.gz")
    written = results.with_name(f"{results.name}.tar.gz.part")
    with tarfile.open(written, "w:gz") as made:
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            content = text.encode()
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    written.rename(target)
    return target
