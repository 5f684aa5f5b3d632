"""`mgg bench aggregate`: sums of neighbours' rows, ours, other libraries', and the least that reading them costs.

What is compared takes turns, in processes (cpu.py) or in kernels of one GPU (gpu.py). The gather floor loads the same
rows in the same order and stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....plan import order
from ..harness import document, graphs
from ..harness.document import Sheet, cell, cells
from ..harness.options import BenchOptions, numbers_of, words_of
from . import plot, summary
from .summary import OURS

DTYPES = ("float32", "bfloat16", "float16")


def runner_of(device: str) -> Any:
    """Return the module that times this package and the baselines on this device."""
    if device == "cuda":
        from . import gpu

        return gpu
    from . import cpu

    return cpu


def run_aggregate(
    names: Sequence[str],
    *,
    device: str,
    widths: str | None,
    dtypes: str,
    orders: str,
    weighted: bool,
    transfers: str,
    peers: str | None,
    **others: Any,
) -> None:
    """Measure, print and write. Raises InputError for a graph, option, library or file that cannot be."""
    runner = runner_of(device)
    options = BenchOptions(**others)
    compared = words_of("peers", peers or runner.PEERS, runner.LIBRARIES, none=True)
    columns = numbers_of("widths", widths or runner.WIDTHS)
    kinds = words_of("dtypes", dtypes, DTYPES)
    methods = words_of("orders", orders, order.METHODS)
    kernels = words_of("transfers", transfers, OURS)
    names = names or runner.GRAPHS
    options.check(*names)
    with runner.comparison(options, compared, kernels) as comparison:
        found, cases = comparison.found, []
        positions: dict[tuple[str, str], int] = {}
        for name in names:
            plain = graphs.read(name)
            for method in methods:
                graph = (
                    plain if method == "none" else order.renumbered(plain, order.permutation(plain, method))
                )
                positions.setdefault((graph.name, method), len(positions))
                case = {**document.about(graph), "weighted": weighted, "order": method}
                for measured, notes in comparison.measure(graph, kinds, columns, weighted=weighted):
                    cases += [case | row for row in measured]
                    found["notes"] = list(dict.fromkeys([*found["notes"], *notes]))
                    summed_up(found, cases)
                    document.write(
                        found, sheets(found), options
                    )  # what is measured stays, whatever ends the rest
    cases.sort(
        key=lambda case: kinds.index(case["dtype"]) + len(kinds) * positions[case["graph"], case["order"]]
    )
    compare_orders(cases)
    summed_up(found, cases)
    document.finish(found, sheets(found), options, plot.draw)


def summed_up(found: dict[str, Any], cases: list[dict[str, Any]]) -> None:
    """Put the cases and what all of them say together into the document."""
    found["cases"], found["summary"] = cases, summary.summarise(cases)
    found["speedup"] = {name: of["mean"] for name, of in found["summary"]["speedup"].items()}


def compare_orders(cases: list[dict[str, Any]]) -> None:
    """Add to ordered cases how many times as fast ours is as each library on unordered rows, by medians.

    These were measured at another time, not in turns with this case.
    """
    keys = ("graph", "dtype", "width")
    plain = {tuple(case[key] for key in keys): case for case in cases if case["order"] == "none"}
    for case in cases:
        before = plain.get(tuple(case[key] for key in keys))
        if before and before is not case:
            ours = case["ms"]["mgg"]["median"]
            case["speedup_over_unordered"] = {name: ms["median"] / ours for name, ms in before["ms"].items()}


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Return the tables: times of this package and of the baselines, and a summary."""
    cases, gpu = found["cases"], "device" in found
    names = list(dict.fromkeys(name for case in cases for name in case["ms"]))
    own = [name for name in OURS.values() if name in names]
    others = [name for name in names if name not in own]
    times, says, theirs, faster, unordered = [], [], [], [], []
    for case in cases:
        head = [summary.rows_named(case), f"{case['dtype']} x {case['width']}"]
        least = [cell(case["floor"]["ms"], 3), f"{case['compulsory']['ms']:.3f}"]
        times.append([*head, *cells(case["ms"], own, 3), *least])
        if gpu:
            rest = [f"{case['gb_per_s']:,.0f}", f"{case['of_copy']:.2f}", str(case["sets"])]
        else:
            huge = case["huge_share"].values()
            rest = [str(case["floor"]["ahead"]), f"{min(huge):.0%} .. {max(huge):.0%}"]
        over = cells(case["over_direct"], own[1:], 2)
        says.append([*head, cell(case["over_floor"], 2), *over, *rest])
        theirs.append([*head, *cells(case["ms"], others, 3)])
        faster.append([*head, *cells(case["speedup"], others, 2)])
        if before := case.get("speedup_over_unordered"):
            ratios = [f"{before[name]:.2f}" if name in before else "-" for name in names]
            unordered.append([*head, *ratios])
    bandwidth = found["copy_gb_per_s"] if gpu else found["stream_gb_per_s"]
    ends = ["GB/s", f"of {bandwidth:,.0f} GB/s", "sets"] if gpu else ["ahead", "huge"]
    over = [f"{name} over mgg" for name in own[1:]]
    meaning = (
        "our other kernels over it; bytes moved over time, and as a share of copying"
        if gpu
        else "the floor's distance; share of memory in huge pages"
    )
    head, spread = ["graph", "rows"], "ms, median (min .. max)"
    made = [
        Sheet(f"ours: {spread}", [*head, *own, "gather floor", f"bytes at {bandwidth:,.1f} GB/s"], times),
        Sheet(
            f"our time relative to the floor; {meaning}", [*head, "relative to the floor", *over, *ends], says
        ),
    ]
    if others:
        columns = [f"over {name}" for name in others]
        made.append(Sheet(f"other libraries: {spread}", [*head, *others], theirs))
        made.append(Sheet("ours is times as fast", [*head, *columns], faster))
    if unordered:
        title = "ours on ordered rows: times as fast as each on the rows as they were"
        made.append(Sheet(title, [*head, *(f"over {name}" for name in names)], unordered))
    if abouts := {name: text for case in cases for name, text in case.get("about", {}).items()}:
        lines = [[*each] for each in abouts.items()]
        made.append(Sheet("other libraries: algorithm; before the clock starts; kept", ["", ""], lines))
    return made + summary.sheets(found["summary"])
