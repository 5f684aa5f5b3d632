"""Gathers of rows that lie in the host's memory, by a GPU that reads them through the link between both.

The commands `requests` and `link` of benchmarks/tiers.py, after figure 3.10 of Min's dissertation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import numpy as np
from harness import options, pcie_requests
from harness.pes import Device
from harness.results import Results, output_files

from mgg_hpc.errors import InputError
from mgg_hpc.plan.cuda_grid import PACK
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime.backends.arguments import Options, Tier, TieredRows
from mgg_hpc.runtime.backends.cuda.kernels import DeviceBackend
from mgg_hpc.runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.timing import interleaved

VALUE = 4  # bytes
OF_PAPER = ",".join(map(str, [480, *range(1024, 1153, VALUE)]))


def checked(sizes: list[int]) -> list[int]:
    """Return sizes of rows of whole values. Raises InputError for others."""
    for size in sizes:
        if size < VALUE or size % VALUE:
            raise InputError(f"--sizes {size}: expected multiples of {VALUE}")
    return sizes


@click.command()
@options.numbers("sizes", OF_PAPER, "Bytes of a row.")
@click.option("--count", type=click.IntRange(1), default=10_000, help="Rows of a gather.")
@output_files(pictures=False)
def requests(sizes: list[int], count: int, files: tuple[Path, ...]) -> None:
    """Count the requests of a gather for rows that lie one after another."""
    results, rng = Results("tiers requests", count=count), np.random.default_rng(0)
    for size in checked(sizes):
        unit = VALUE if size % PACK else PACK
        first = rng.integers(0, 1 << 20, count) * (size // unit)
        lines, unshifted, shifted = (
            int(pcie_requests.count(first, first + size // unit, unit, reads).sum())
            for reads in ("aligned", "merged", "shifted")
        )
        row = {"row_bytes": size, "unit_bytes": unit, "lines_per_row": lines / count}
        row |= {"unshifted_per_row": unshifted / count, "shifted_per_row": shifted / count}
        results.rows.append(row | {"shifted_over_lines": round(shifted / lines, 4)})
    results.write(files)
    results.show()


@click.command()
@options.numbers("sizes", "1024,1028,1040,4096,4100", "Bytes of a row.")
@click.option("--mib", type=click.IntRange(1), default=4096, help="Size of all rows.")
@click.option("--count", type=click.IntRange(1), default=200_000, help="Rows of a gather.")
@options.turns(9)
@output_files(pictures=False)
def link(sizes: list[int], mib: int, count: int, turns: int, files: tuple[Path, ...]) -> None:
    """Time gathers by a GPU from page-locked memory, against a copy of as many bytes."""
    device = Device.current()
    backend = DeviceBackend(0, World(1), Options(DEFAULT_GEOMETRY), device.module, device.arrays)
    results, rng = Results("tiers link", device="cuda", mib=mib, count=count), np.random.default_rng(0)
    for size in checked(sizes):
        held, format = (mib << 20) // size, RowFormat(np.dtype(np.float32), size // VALUE)
        if held < count:
            raise InputError(f"--count {count}: {mib} MiB have {held} rows of {size} bytes")
        rows = device.arrays.pinned(held * size).view(np.float32).reshape(held, format.dim)
        rows[:] = 1
        tier, out = Tier.of_array("host", rows), backend.memory.padded(count, format)

        def timed(table: TieredRows | None, rows=rows, out=out) -> float:
            ids = device.arrays.uploaded(rng.integers(0, len(rows), count))
            if table is None:
                return device.ms(lambda: device.arrays.sent(rows[:count]))
            return device.ms(partial(backend.gathers.rows, backend, table, ids, out))

        tables = {
            "copy": None,
            "gather": TieredRows(held, format, [tier]),
            # A launch of as many CUDA blocks as there is work for.
            "gather by the whole GPU": TieredRows(held, format, [replace(tier, kept=None)]),
        }
        runs: dict[str, Callable[[], float]] = {name: partial(timed, each) for name, each in tables.items()}
        interleaved(runs, 1)  # makes the tables
        results.compare(interleaved(runs, turns), row_bytes=size)
        for row in results.rows[-len(runs) :]:
            row["of_copy"] = round(1 / row["relative_time"], 4)
            row["gb_per_s"] = round(count * size / row["median_ms"] / 1e6, 3)
    results.write(files)
    results.show("row_bytes", "variant", "median_ms", "min_ms", "max_ms", "of_copy", "gb_per_s")
