"""The native module `_graph`, which needs no backend: parsing, sorting, drawing, orders, partitions and plans."""

from __future__ import annotations

from typing import Any

from ..errors import InputError


def load() -> Any:
    """Return the module. Raises InputError if it is not built."""
    try:
        from .. import _graph
    except ImportError as error:
        raise InputError(
            f"the native module mgg_hpc._graph does not load ({error}); install with `pip install .`"
        ) from error
    return _graph
