"""`mgg bench overlap --device cuda`: how much of fetching remote rows hides behind sums, in kernels on one GPU.

One process plays two PEs. The first sums; the second owns a share of the rows, which lie in page-locked memory of the
host: the link to the host plays a slow one between GPUs. What the parts of a way take is measured without the other:
sums by the direct kernel over rows that all lie on the GPU (`sum`), and the transfer by the way's own kernel over a
plan with nothing else to do (`moves`; `get` fetches nothing without edges, so that it sums its remote rows there too).
`near` is the whole way with all rows on the GPU. What is hidden follows from that (`plan.overlap`).

Beside the pipelined transfers stand those that MGG is compared with: `bulk` (all rows arrive, then sums), `direct`
(loads through pointers), and `managed`: pages move to the GPU as they are touched, and back to the host between turns.
On request, too: `ring` (whole partitions, passed on), and gets without neighbour partitions (`get-whole`), issued
when rows are needed (`get-late`), by warps that sum nothing else (`get-separate`), by single threads (`get-thread`) or
by whole blocks (`get-block`), or one row an edge without anything of MGG (`get-plain`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....data.graph import Graph
from ....errors import InputError
from ....plan.layout import RowFormat
from ....runtime.turns import take_turns
from ..harness import document, graphs, timing, watch
from ..harness.document import Sheet, cells
from ..harness.gpu import Device
from ..harness.options import BenchOptions, words_of
from . import plot
from .gpu_transfers import ABLATIONS, Subject, Way

WAYS = ("halo", "get", "bulk", "direct")  # managed memory only where it is asked for
HIDES = ("halo", "get")  # what has parts
SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
GRAPH, WIDTH = "uniform:20:16", 128
NOT_SEEN = np.iinfo(np.uint64).max


def measure(
    device: Device, graph: Graph, share: float, format: RowFormat, ways: Sequence[str], turns: int
) -> dict[str, Any]:
    """Return one row of the result. Raises AssertionError where ways differ in their sums."""
    subject = Subject(device, graph, share, format)
    plan, row = subject.plans[0], format.dim * format.dtype.itemsize
    hides = [name for name in HIDES if name in ways and plan.remote_edges]
    whole = {name: subject.way(name) for name in ways}
    runs = {"sum": subject.sums()} | whole
    runs |= {f"{name} moves": subject.transfer_only(name) for name in hides}
    runs |= {f"{name} near": subject.way(name, near=True) for name in hides}
    for run in runs.values():
        device.clock.ms([run.call])
    ms = take_turns({name: partial(timed, device, run) for name, run in runs.items()}, turns)
    for name, run in whole.items():
        if count := subject.wrong(run):
            raise AssertionError(f"{name}: {count} sums differ from those of rows on the GPU")
    spreads = {name: timing.spread(taken) for name, taken in ms.items()}
    return {
        "share": share,
        "local_edges": plan.local_edges,
        "remote_edges": plan.remote_edges,
        "halo_rows": len(plan.halo),
        "bytes": {name: row * (len(plan.halo) if name != "get" else plan.remote_edges) for name in HIDES},
        "ms": spreads,
        "balance": {name: spreads[f"{name} moves"]["median"] / spreads["sum"]["median"] for name in hides},
        "hidden_share": {name: timing.hidden(spreads, f"{name} moves", name) for name in hides},
        "over_direct": {
            name: spreads[name]["median"] / spreads["direct"]["median"]
            for name in HIDES
            if name in ways and "direct" in ways
        },
    }


def timed(device: Device, way: Way) -> float:
    """Return the ms of one call of a way, after the work that it needs between two calls."""
    way.between()
    return device.clock.ms([way.call])


def timeline(device: Device, graph: Graph, share: float, format: RowFormat) -> dict[str, Any]:
    """Return one call of the halo with time stamps, in microseconds since the first.

    pushes: [began, packed] of each chunk, which is signalled then; arrivals: when the first worker saw it; blocks:
    of the PE that sums, [began, has taken the last work, ended].
    """
    way = Subject(device, graph, share, format).way("halo")
    way.call()
    owner, sums = way.backends[1].halo(way.plans[1]), way.backends[0].halo(way.plans[0])
    blocks = way.backends[0].launch(way.plans[0], format).blocks
    chunks = owner.pushes(way.backends[1], way.plans[1], format.row_bytes)
    taken = {
        "pushes": device.arrays.uploaded(np.zeros((chunks, 2), np.int64)),
        "arrivals": device.arrays.uploaded(np.full(chunks, NOT_SEEN).view(np.int64)),
        "blocks": device.arrays.uploaded(np.zeros((blocks, 4), np.int64)),
    }
    address = {name: device.arrays.address(array) for name, array in taken.items()}
    owner.stamps = (0, address["pushes"], 0)
    sums.stamps = (address["blocks"], 0, address["arrivals"])
    device.clock.ms([way.call])
    found: dict[str, NDArray[Any]] = {
        name: device.tensor(array).cpu().numpy().view(np.uint64) for name, array in taken.items()
    }
    found["blocks"] = found["blocks"][:, [0, 2, 3]]
    first = min(int(each.min()) for each in found.values())
    return {
        "share": share,
        "chunk_bytes": way.backends[1].chunk_bytes,
        **{name: ((each - first) / 1e3).tolist() for name, each in found.items()},
    }


def shares_of(text: str | None) -> list[float]:
    """Return the shares named on the command line. Raises InputError for a word that is no share."""
    try:
        found = [float(word) for word in text.split(",")] if text else list(SHARES)
    except ValueError:
        found = [-1.0]
    if not all(0 <= each < 1 for each in found):
        raise InputError(f"--shares: {text!r}; expected numbers from 0 to less than 1, as 0,0.05,0.1")
    return sorted(set(found))


def run_overlap(
    graph: str | None, *, width: int | None, ways: str | None, shares: str | None, **files: Any
) -> int:
    """Measure, print and write. Raises InputError for an option that cannot be, and where there is no GPU."""
    chosen, far = words_of("ways", ways or ",".join(WAYS), ABLATIONS), shares_of(shares)
    options, name, width = BenchOptions(**files), graph or GRAPH, width or WIDTH
    options.check(name)
    device = Device.current()
    read, format = graphs.read(name), RowFormat(np.dtype(np.float32), width)
    chosen.sort(key="managed".__eq__)  # last: pages that move about may disturb what follows

    found = document.begin("device-overlap", options, device) | document.about(read) | {"width": width}
    cases = found["cases"] = []
    found["balance"] = {}

    def add(share: float) -> None:
        with watch.cell(read.name, f"width {width}", f"share {share:.3g}"):
            cases.append(measure(device, read, share, format, chosen, options.turns))
        cases.sort(key=lambda case: case["share"])
        document.write(found, sheets(found), options)  # what is measured stays, whatever ends the rest

    for share in far:
        add(share)
    for way in HIDES:
        if (between := balanced(cases, way)) is not None:
            add(between)
    for way in HIDES:
        at = [case for case in cases if way in case["balance"]]
        if at:
            best = min(at, key=lambda case: abs(np.log(case["balance"][way])))
            kept = {
                "share": best["share"],
                "ratio": best["balance"][way],
                "hidden": best["hidden_share"][way],
            }
            found["balance"][way] = kept
            found["notes"].append(
                f"{way}: at a remote share of {kept['share']:.3g} the transfer takes {kept['ratio']:.2f} times the "
                f"sums' time, and {kept['hidden']:.2f} of the shorter one is hidden"
            )
    if "halo" in found["balance"]:
        with watch.cell(read.name, "timeline"):
            found["timeline"] = timeline(device, read, found["balance"]["halo"]["share"], format)
    document.finish(found, sheets(found), options, plot.draw)
    return 0


def balanced(cases: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the interpolated share at which a transfer takes as long as the sums; None outside the measured ones."""
    known = sorted((case["share"], case["balance"][name]) for case in cases if name in case["balance"])
    for (low, below), (high, above) in itertools.pairwise(known):
        if below < 1 < above:
            part = np.log(1 / below) / np.log(above / below)
            return float(np.exp(np.log(low) + part * np.log(high / low)))
    return None


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Return the tables of times and hidden shares."""
    cases = found["cases"]
    names = list(dict.fromkeys(name for case in reversed(cases) for name in case["ms"]))
    hides = [name for name in HIDES if name in names]
    times, says = [], []
    for case in cases:
        ms, share = case["ms"], f"{case['share']:.3g}"
        times.append([share, *cells(ms, names, 3)])
        counts = [f"{case['halo_rows']:,}", f"{case['remote_edges']:,}"]
        there = [name for name in hides if name in case["hidden_share"]]
        rates = {name: case["bytes"][name] / ms[f"{name} moves"]["median"] / 1e6 for name in there}
        for values in (rates, case["balance"], case["hidden_share"], case["over_direct"]):
            places = 1 if values is rates else 2
            counts += [f"{values[name]:.{places}f}" if name in values else "-" for name in hides]
        says.append([share, *counts])
    kinds = ("{}, GB/s", "{} moves / sum", "{} hides", "{} / direct")
    columns = [kind.format(name) for kind in kinds for name in hides]
    title = f"{found['graph']}, float32 x {found['width']}: ms, median (min .. max)"
    crosses = "what crosses, and how much of it is hidden"
    return [
        Sheet(title, ["remote share", *names], times),
        Sheet(crosses, ["remote share", "rows", "edges", *columns], says),
    ]
