"""Small JSON documents in the user's cache folder: measurements of this machine for later runs."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ..errors import InputError
from .atomic_write import replacement

LARGEST = 1 << 20  # bytes of a document


def folder() -> Path:
    """Return the folder ``mgg-hpc`` in $XDG_CACHE_HOME, or else in ~/.cache."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path("~/.cache").expanduser()) / "mgg-hpc"


def read(name: str, format: str, version: int) -> tuple[dict[str, Any] | None, str]:
    """Return (document, ""), or (None, message) if it is not of this format and version; (None, "") without a file."""
    try:
        path = folder() / name
    except RuntimeError:  # there is no home folder
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
    """Return True if documents can be written. Creates the folder if it does not exist."""
    try:
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.access(folder(), os.W_OK | os.X_OK)
    except (OSError, RuntimeError):
        return False


def write(name: str, document: dict[str, Any]) -> bool:
    """Write a document, whole or not at all, and return False if the folder is not writable."""
    content = (json.dumps(document, indent=2) + "\n").encode()
    with contextlib.suppress(OSError, InputError, RuntimeError):
        target = folder() / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacement(target, force=True, size=len(content), mode=0o600) as draft:
            draft.write_bytes(content)
        return True
    return False
