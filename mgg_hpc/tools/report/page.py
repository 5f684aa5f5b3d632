"""The page of `mgg report`: renders page.html, and computes what it needs beyond the runs' files."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from ... import __version__, config, sizes
from ...data.atomic_write import check_output, replacement
from ...data.store import open_graph
from ...errors import InputError
from ...training.metrics import METRICS
from ...training.profile.phases import PROFILER, breakdown
from .. import plots
from . import figures, timeline
from .read import Run, read

NAME = "report.html"
MOST_RUNS = len(plots.COLOURS)
MOST_RANKS, MOST_BARS = 64, 32  # ranks of a run in a table, and in a figure, so that pages stay small
MOST_MATCHED = 256  # largest number of ranks for which the least number of rows is computed
# Errors that the template raises for a damaged summary.
WRONG = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, jinja2.UndefinedError)


def process_report(paths: Sequence[Path], output: Path | None, *, force: bool, least: bool) -> None:
    """Write the report of runs, and print its path.

    output: the file to write. [default: report.html in the folder of the run, overwritten; for several runs,
    report.html in the current folder]. least: True to compute the least number of rows that must cross between
    ranks. Raises InputError for a folder that holds no run, and for damaged files.
    """
    if len(paths) > MOST_RUNS:
        raise InputError(f"{len(paths)} runs are named, and a report shows {MOST_RUNS} at most; name fewer")
    runs = read(paths)
    if output is None:
        output, force = (runs[0].folder / NAME, True) if len(runs) == 1 else (Path(NAME), force)
    check_output(output, force=force, endings=[".html"])
    plots.load()  # before the work, where it is missing
    content = page(runs, least=least).encode(errors="replace")  # names may hold lone surrogates
    with replacement(output, force=force, size=len(content), mode=0o600) as name:
        name.write_bytes(content)
    print(output)


def page(runs: Sequence[Run], *, least: bool) -> str:
    """Return the HTML page about runs. Raises InputError if their files lack what a report needs."""
    files = jinja2.PackageLoader(__package__, "")
    made = jinja2.Environment(
        loader=files, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    made.filters |= {"size": sizes.shown, "to": format}
    made.globals |= {"breakdown": breakdown, "facts": _facts, "figures": figures, "imbalance": _imbalance}
    made.globals |= {"crossing": functools.partial(_crossing, wanted=least), "phases": _phases}
    made.globals |= {"most": MOST_RANKS, "timeline": timeline, "titles": METRICS, "version": __version__}
    try:
        return made.get_template("page.html").render(runs=runs)
    except WRONG as error:
        folders = ", ".join(str(run.folder) for run in runs)
        raise InputError(
            f"{folders}: summary.json, tuning.json or profile/ lacks what a run writes ({error!r}); they are damaged"
        ) from error


def _phases(runs: Sequence[Run]) -> tuple[list[str], dict[str, list[float]]]:
    """Return a label for each rank of each run, and their mean milliseconds per epoch, by phase."""
    spent = {}
    for run in (run for run in runs if run.summary.get("timed_epochs")):
        for rank, each in enumerate(run.ranks[:MOST_BARS]):
            label = f"{run.name}: rank {rank}" if len(runs) > 1 else f"rank {rank}"
            spent[label] = {kind: ms / run.summary["timed_epochs"] for kind, ms in each["phases_ms"].items()}
    kinds = dict.fromkeys(kind for each in spent.values() for kind, ms in each.items() if ms > 0)
    return list(spent), {
        kind: [each.get(kind, 0.0) for each in spent.values()] for kind in kinds if kind != PROFILER
    }


def _imbalance(ranks: Sequence[Mapping[str, Any]]) -> float:
    edges = [each["local_edges"] + each["remote_edges"] for each in ranks]
    return max(edges) * len(edges) / sum(edges) if any(edges) else 1.0


def _crossing(run: Run, wanted: bool) -> tuple[list[dict[str, Any]] | None, str]:
    """Return a run's ranks, each with "least", the least number of rows that must cross to it, and a remark.

    The first value is None if that number is not computed; the remark then gives the reason. wanted: False if
    the user does not want it.
    """
    path, exchanges = Path(run.settings.graph.file), run.summary["exchanges"]
    try:
        if not wanted:
            raise InputError("--no-least was given")
        if len(run.ranks) > MOST_MATCHED:
            raise InputError(
                f"it is found for pairs of ranks, only where there are at most {MOST_MATCHED} ranks"
            )
        if not path.is_file():
            raise InputError(f"{path} does not exist")
        found = crossing(path, np.array(run.summary["bounds"], dtype=np.int64))
        if found.halo.sum(axis=1).tolist() != [each["halo_rows"] for each in run.ranks]:
            raise InputError(f"{path} has other rows, or in another order, than when the run trained on it")
    except (InputError, ValueError, IndexError) as error:
        return None, f"The least that must cross is left out: {str(error).rstrip('.')}."
    least = found.least.sum(axis=1).tolist()
    ranks = [each | {"least": count} for each, count in zip(run.ranks, least, strict=True)]
    edges, halo, fewest = (int(counts.sum()) for counts in found)
    rows = {"direct": edges, "get": edges, "halo": halo}
    moved = sum(rows.get(each["transfer"], np.nan) * each["row_bytes"] for each in exchanges)
    fewest *= sum(each["row_bytes"] for each in exchanges)
    if not fewest or moved != run.summary["bytes"]["remote"]:  # the graph does not explain what was moved
        return ranks, ""
    times = f"An epoch moved {sizes.shown(moved)}, which is {moved / fewest:.2f} times the least, {sizes.shown(fewest)}"
    return ranks, f"{times}, over its {len(exchanges)} aggregations."


def _facts(runs: Sequence[Run], of: str) -> list[tuple[str, list[str], bool]]:
    """Return rows of a table that compares runs: (name, its value in each run, True if these differ).

    Rows whose values differ come first. of: "machine" for properties of the machine, "job" for keys of the
    settings.
    """
    if of == "job":
        trees = [tomllib.loads(config.dumps(run.settings)) for run in runs]
        facts = [{f"{part}.{key}": tree[part][key] for part in tree for key in tree[part]} for tree in trees]
    else:
        known = [run.summary.get("machine", {}) for run in runs]
        shown = [each | {n: sizes.shown(each[n]) for n in each.keys() & {"memory_bytes"}} for each in known]
        facts = [{n.removesuffix("_bytes").replace("_", " "): each[n] for n in each} for each in shown]
    names = dict.fromkeys(name for each in facts for name in each)
    rows = [(name, [str(each.get(name, "")) for each in facts]) for name in names]
    return sorted(((name, values, len(set(values)) > 1) for name, values in rows), key=lambda row: not row[2])


# ---- the least number of rows -------------------------------------------------------------------------


class Crossing(NamedTuple):
    """Numbers of rows that cross between ranks in one aggregation, int64 [P, P]; entry [p, q] is from q to p.

    edges: if one row crosses for each edge. halo: if each distinct row crosses once. least: the fewest rows and
    partial sums that suffice.

    For each edge u -> v between two ranks, either the row of u crosses or a partial sum for v. The rows that cross from
    one rank to another thus cover the edges between them, and a minimum vertex cover of this bipartite graph gives
    their least number. By Koenig's theorem it has as many vertices as a maximum matching has edges (Hopcroft and Karp,
    SIAM J. Comput. 2, 1973).
    """

    edges: NDArray[np.int64]
    halo: NDArray[np.int64]
    least: NDArray[np.int64]


def crossing(path: Path, bounds: NDArray[np.int64]) -> Crossing:
    """Count the rows that cross between all pairs of ranks. path: graph file. bounds: int64 [P + 1].

    Raises InputError as `open_graph` does, and ValueError for bounds that do not fit the graph.
    """
    ranks = len(bounds) - 1
    found = Crossing(*np.zeros((3, ranks, ranks), dtype=np.int64))
    with open_graph(path) as graph:
        for p in range(ranks):
            rows = graph.slice(int(bounds[p]), int(bounds[p + 1]), dense=False)
            ones, shape = np.ones(len(rows.indices), dtype=bool), (len(rows.ids), graph.nodes)
            columns = csr_matrix(
                (ones, rows.indices, rows.indptr), shape=shape
            ).tocsc()  # keeps parallel edges
            for q in set(range(ranks)) - {p}:
                block = columns[:, bounds[q] : bounds[q + 1]]
                found.edges[p, q], found.halo[p, q] = block.nnz, np.count_nonzero(np.diff(block.indptr))
                matched = maximum_bipartite_matching(block.tocsr(), perm_type="column")
                found.least[p, q] = np.count_nonzero(matched >= 0)
    return found
