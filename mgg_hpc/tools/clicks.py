"""Write logs of clicks as files that training reads: `mgg import clicks`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..data.atomic_write import check_output
from ..data.clicks.criteo import read_criteo
from ..data.clicks.store import write_clicks
from ..data.readers.compressed import text_size
from ..errors import InputError
from ..sizes import counted
from .importing import states
from .terminal import phases


def process_clicks(logs: Sequence[Path], output: Path, *, force: bool, skip_bad: bool) -> None:
    """Read logs of Criteo's, one after another, and write their columns as one file."""
    if not logs:
        raise InputError("name the logs: mgg import clicks day_0.gz day_1.gz -o clicks.h5")
    check_output(output, force=force, inputs=logs)
    for path in logs:
        text_size(path)  # a missing one ends the import before any is read
    files = states(logs)
    key = None if files is None else json.dumps(["clicks", files])
    days = [partial(read_criteo, path, skip_bad=skip_bad) for path in logs]
    with phases(output) as report:
        rows, bad = write_clicks(output, days, force=force, key=key, skip_bad=skip_bad, progress=report)
    print(f"{output}: {rows:,} clicks of {counted(len(logs), 'day')}")
    if bad:
        print(f"passed over {counted(bad, 'bad line')}")
