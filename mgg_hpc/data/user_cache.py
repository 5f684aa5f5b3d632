"""Small JSON documents in the user's cache folder: measurements of this machine that later runs use again."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ..errors import InputError
from .atomic_write import replacement

LARGEST = 1 << 20  # bytes of a document; anything larger is none of ours


def folder() -> Path:
    """Return the folder: ``mgg-hpc`` in $XDG_CACHE_HOME, else in ~/.cache."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path("~/.cache").expanduser()) / "mgg-hpc"


def read(name: str, format: str, version: int) -> tuple[dict[str, Any] | None, str]:
    """Return the document ``name`` of this format and version, or None and what is wrong with the file there is.

    Without such a file both are empty: (None, "").
    """
    try:
        path = folder() / name
    except RuntimeError:  # no home
        return None, ""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path}: ignored, since it cannot be read ({type(error).__name__})"
    kind = (found.get("format"), found.get("version")) if isinstance(found, dict) else None
    if kind != (format, version):
        return None, f"{path}: ignored, since it is no {format} of version {version}"
    return found, ""


def writable() -> bool:
    """Return whether documents can be kept; make the folder if it is not there."""
    try:
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.access(folder(), os.W_OK | os.X_OK)
    except (OSError, RuntimeError):
        return False


def write(name: str, document: dict[str, Any]) -> bool:
    """Keep a document under this name, whole or not at all; return False where the folder cannot be written."""
    content = (json.dumps(document, indent=2) + "\n").encode()
    with contextlib.suppress(OSError, InputError, RuntimeError):
        target = folder() / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacement(target, force=True, size=len(content), mode=0o600) as draft:
            draft.write_bytes(content)
        return True
    return False
