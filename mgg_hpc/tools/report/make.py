"""`mgg report`: read runs and write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ... import __version__
from ...data.atomic_write import check_output, replacement
from ...errors import InputError
from ..bench.harness import plots
from . import figures, sections
from .page import assembled
from .read import Run, read

NAME = "report.html"
MOST_RUNS = len(figures.COLOURS)


def process_report(paths: Sequence[Path], output: Path | None, *, force: bool, least: bool) -> None:
    """Write the report of runs, and print its path.

    output: the file to write. [default: report.html in the folder of the run, which is replaced; for several runs,
    report.html in the current folder]. least: whether to find the least number of rows that must cross. Raises
    InputError for a folder that holds no run, and for damaged files.
    """
    if len(paths) > MOST_RUNS:
        raise InputError(f"{len(paths)} runs are named, and a report shows {MOST_RUNS} at most; name fewer")
    runs = read(paths)
    if output is None:
        output, force = (runs[0].folder / NAME, True) if len(runs) == 1 else (Path(NAME), force)
    check_output(output, force=force)
    plots.load()  # before the work, where it is missing
    content = page(runs, least=least).encode(errors="replace")  # names may hold lone surrogates
    with replacement(output, force=force, size=len(content), mode=0o600) as name:
        name.write_bytes(content)
    print(output)


def page(runs: Sequence[Run], *, least: bool) -> str:
    """Return the page. Raises InputError for runs whose files lack what a report needs."""
    try:
        parts = [
            sections.overview(runs),
            sections.learning(runs),
            sections.times(runs),
            sections.balance(runs, least),
            sections.memory(runs),
            sections.tuner(runs),
            sections.lanes(runs),
            sections.machines(runs),
            sections.settings(runs),
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        folders = ", ".join(str(run.folder) for run in runs)
        raise InputError(
            f"{folders}: summary.json, tuning.json or profile/ lacks what a run writes ({error!r}); they are damaged"
        ) from error
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return assembled(
        f"Report on {title}", f"Written by mgg {__version__} report, from the files of the runs.", parts
    )
