"""CuPy, which is optional, for what compiles tapes; no other file of the backend imports it."""

from __future__ import annotations

import os
from typing import Any

from ....data import user_cache


def cupy() -> Any:
    """Return CuPy, which keeps what it compiles in the user's cache folder; or None where it cannot be imported."""
    try:
        # Read when CuPy is imported, or later: what the user has set stays.
        os.environ.setdefault("CUPY_CACHE_DIR", str(user_cache.folder() / "cupy"))
        import cupy
    except Exception:  # not installed, without its libraries, or without a home
        return None
    return cupy
