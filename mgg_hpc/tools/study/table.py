"""What a study measured, as rows: printed, written as CSV, and drawn."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...data.atomic_write import check_output, replacement
from ...errors import InputError
from ..bench.harness import document, plots
from ..bench.harness.document import Sheet

Row = dict[str, Any]

COLUMNS = (
    "study",
    "job",
    "graph",
    "nodes",
    "edges",
    "device",
    "backend",
    "ranks",
    "ranks_per_gpu",
    "threads_per_rank",
    "width_values",
    "remote_share",
    "density_percent",
    "rate_gb_per_s",
    "transfer",
    "model",
    "variant",
    "ps_edges",
    "dist_edges",
    "wpb_partitions",
    "local_edges",
    "remote_edges",
    "halo_rows",
    "crossing_bytes",
    "turns",
    "min_ms",
    "median_ms",
    "max_ms",
    "processor_ms",
    "times_first",
    "step",
    "fanouts",
    "batch_rows",
    "batches",
    "seed",
    "epochs",
    "best_epoch",
    "val_percent",
    "test_percent",
    "eval_ms",
    "training_s",
    "peak_rss_bytes",
    "peak_bytes",
    "edge_tensor_bytes",
    "chunks_bytes",
    "sums_bytes",
    "others_bytes",
    "edge_bytes",
    "requests_32",
    "requests_64",
    "requests_96",
    "requests_128",
    "moved_bytes",
    "amplification",
    "gb_per_s",
    "copy_gb_per_s",
    "moving_ms",
    "computing_ms",
)


@dataclass(frozen=True)
class Files:
    """The files that a study writes. plot: None for no picture."""

    csv: Path
    plot: Path | None

    def check(self) -> None:
        """Raise InputError for a file that cannot be written, before anything is measured."""
        for path in (self.csv, self.plot):
            if path is not None:
                check_output(path, force=True)
        if self.plot is not None:
            if self.plot.suffix not in (".png", ".svg", ".pdf"):
                raise InputError(f"{self.plot}: a plot is a .png, .svg or .pdf")
            plots.load()


@dataclass
class Table:
    """The rows of a study, which all have ``same`` in common."""

    study: str
    same: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def add(
        self, variant: str, spread: Mapping[str, float], turns: int, times: float | None = None, **more: Any
    ) -> Row:
        """Add the row of a variant, and return it.

        spread: ms, as `timing.spread` returns it. times: its time over the first variant's, turn by turn.
        """
        made = {"study": self.study, **self.same, **more, "variant": variant, "turns": turns}
        made |= {f"{name}_ms": round(value, 4) for name, value in spread.items()}
        if times is not None:
            made["times_first"] = round(times, 4)
        if unknown := made.keys() - set(COLUMNS):
            raise KeyError(f"no such columns: {unknown}")
        self.rows.append(made)
        return made

    def text(self) -> str:
        """Return the rows as CSV, with the columns that any row has."""
        used = [name for name in COLUMNS if any(row.get(name) is not None for row in self.rows)]
        written = io.StringIO()
        lines = csv.DictWriter(written, used, restval="", extrasaction="ignore", lineterminator="\n")
        lines.writeheader()
        lines.writerows(self.rows)
        return written.getvalue()

    def finish(self, files: Files, draw: Callable[[Table, Path], None], shown: Sequence[str]) -> None:
        """Print the rows' columns ``shown`` and write the files."""
        heads = [name.replace("_", " ") for name in shown]
        cells = [[_cell(row.get(name)) for name in shown] for row in self.rows]
        document.show([self.about()], [Sheet(self.study, heads, cells)])
        self.save(files, draw)

    def save(self, files: Files, draw: Callable[[Table, Path], None]) -> None:
        """Write the files."""
        text = self.text().encode()
        with replacement(files.csv, force=True, size=len(text)) as written:
            written.write_bytes(text)
        if files.plot is not None:
            draw(self, files.plot)

    def about(self) -> str:
        """Return the conditions that all rows have in common, in words."""
        same = self.same
        said = (
            [f"{same['graph']}: {same['nodes']:,} nodes, {same['edges']:,} edges"] if "graph" in same else []
        )
        if "ranks_per_gpu" in same:
            said.append(f"{same['ranks']} ranks, {same['ranks_per_gpu']} a GPU")
        elif "ranks" in same:
            said.append(
                f"{same['ranks']} x {same['threads_per_rank']} ranks x threads, backend {same['backend']}"
            )
        if "remote_share" in same:
            said.append(f"a share of {same['remote_share']:g} of the rows in the host's memory")
        if same.get("width_values"):
            said.append(f"float32 x {same['width_values']}")
        said += [f"transfer {same['transfer']}"] if "transfer" in same else []
        return "; ".join([*said, str(same["device"])])


def read(path: Path) -> list[Row]:
    """Return the rows of a study's CSV, numbers as numbers."""
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
