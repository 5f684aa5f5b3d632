"""A cell of an aggregate benchmark, and what all say together: the worst, means, and half rows against float32."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..harness import timing
from ..harness.document import Sheet

KEYS = ("graph", "order", "weighted", "dtype", "width")
HALVES = ("bfloat16", "float16")
OURS = {"direct": "mgg", "get": "mgg-get", "halo": "mgg-halo"}  # by transfer


def row_of(
    dtype: str,
    width: int,
    ms: Mapping[str, Sequence[float]],
    floors: Mapping[int, Sequence[float]],
    floor_is: str,
    compulsory_bytes: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Return what documents keep of a type and width of rows, from the times of each turn.

    floors: by what ``floor_is`` names, of which the fastest counts. bandwidth: GB/s.
    """
    best = min(floors, key=lambda key: timing.spread(floors[key])["median"])
    found = timing.compared(ms)
    over = {name: found["speedup"].pop(name) for name in OURS.values() if name in found["speedup"]}
    return {
        "dtype": dtype,
        "width": width,
        **found,
        "over_direct": over,
        "floor": {"ms": timing.spread(floors[best]), floor_is: best},
        "compulsory": {"bytes": compulsory_bytes, "ms": compulsory_bytes / bandwidth / 1e6},
        "over_floor": timing.ratios(ms["mgg"], floors[best]),
    }


def summarise(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document's "summary"; a cell is named by its KEYS, with its ratio as ``times``.

    over_floor: the worst cell, and the geometric mean. over_direct: the same for each other transfer of ours.
    speedup: for each baseline the geometric mean over the cells that it took part in, and the least. half: for each
    half type how many times as fast as float32 on the same graph and width: in turns on a GPU, on CPUs by medians.
    """
    return {
        "over_floor": _spread(cases, lambda case: {"mgg": case["over_floor"]}, max)["mgg"],
        "over_direct": _spread(cases, lambda case: case.get("over_direct", {}), max),
        "speedup": _spread(cases, lambda case: case["speedup"], min),
        "half": _halves(cases),
    }


def _spread(
    cases: Sequence[Mapping[str, Any]],
    ratios_of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    worst: Callable[..., Any],
) -> dict[str, Any]:
    """Return the geometric mean and the worst cell of each name in the cases' ratios: {"mean", "worst"}."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        for name, ratio in ratios_of(case).items():
            cell = {key: case[key] for key in KEYS} | {"times": ratio["median"]}
            found.setdefault(name, []).append(cell)
    return {
        name: {
            "mean": statistics.geometric_mean(cell["times"] for cell in cells),
            "worst": worst(cells, key=lambda cell: cell["times"]),
        }
        for name, cells in found.items()
    }


def _halves(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    def key(case: Mapping[str, Any], dtype: str) -> tuple[Any, ...]:
        return tuple(dtype if name == "dtype" else case[name] for name in KEYS)

    def times(case: Mapping[str, Any]) -> float:
        if "over_float32" in case:
            return float(case["over_float32"]["median"])
        return float(whole[key(case, "float32")] / case["ms"]["mgg"]["median"])

    whole = {key(case, case["dtype"]): case["ms"]["mgg"]["median"] for case in cases}
    return [
        {name: case[name] for name in KEYS} | {"times": times(case)}
        for case in cases
        if case["dtype"] in HALVES and key(case, "float32") in whole
    ]


def rows_named(case: Mapping[str, Any]) -> str:
    """Return the name of a case's graph, order and weights: "rmat18, rcm, weighted"."""
    order = "" if case["order"] == "none" else f", {case['order']}"
    return case["graph"] + order + (", weighted" if case["weighted"] else "")


def sheets(summary: Mapping[str, Any]) -> list[Sheet]:
    """Return the summary as tables: a line for each comparison; half types by width."""
    lines = []

    def line(what: str, of: Mapping[str, Any]) -> None:
        cell = of["worst"]
        where = f"{rows_named(cell)}: {cell['dtype']} x {cell['width']}"
        lines.append([what, f"{of['mean']:.2f}", f"{cell['times']:.2f}", where])

    line("time relative to the gather floor", summary["over_floor"])
    for name, of in summary["over_direct"].items():
        line(f"{name} over mgg", of)
    for name, of in summary["speedup"].items():
        line(f"times as fast as {name}", of)
    made = [Sheet("all cells together", ["", "geometric mean", "worst", "which is"], lines)]
    if halves := summary["half"]:
        widths = sorted({cell["width"] for cell in halves})
        rows: dict[tuple[str, str], dict[int, str]] = {}
        for cell in halves:
            row = rows.setdefault((rows_named(cell), cell["dtype"]), {})
            row[cell["width"]] = f"{cell['times']:.2f}"
        title = "ours on half rows: times as fast as on float32"
        columns = ["graph", "rows", *(f"x {width}" for width in widths)]
        table = [[*head, *(row.get(width, "-") for width in widths)] for head, row in rows.items()]
        made.append(Sheet(title, columns, table))
    return made
