"""Write logs of clicks as files that training reads: `mgg import clicks`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..data.atomic_write import check_output
from ..data.clicks.criteo import read_criteo
from ..data.clicks.store import write_clicks
from ..errors import InputError
from .terminal import waiting


def process_clicks(logs: Sequence[Path], output: Path, *, force: bool, skip_bad: bool) -> None:
    """Read logs of Criteo's, one after another, and write their columns as one file."""
    if not logs:
        raise InputError("name the logs: mgg import clicks day_0.gz day_1.gz -o clicks.h5")
    check_output(output, force=force, inputs=logs)
    with waiting(f"reading {len(logs)} logs"):
        days = [partial(read_criteo, skip_bad=skip_bad)(path) for path in logs]
        rows, bad = write_clicks(output, days, force=force)
    print(f"{output}: {rows:,} clicks of {len(logs)} days")
    if bad:
        print(f"{bad:,} lines were wrong, and were passed over")
