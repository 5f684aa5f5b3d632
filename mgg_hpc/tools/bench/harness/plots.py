"""Drawing with matplotlib, which is loaded here, when a picture is drawn, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....errors import InputError

COLOURS = {
    "mgg": "#c8432b",
    "mgg-get": "#dd8a78",
    "mgg-halo": "#f0c4ba",
    "dgl": "#2f6690",
    "torch": "#e09f3e",
    "pyg": "#5b8e7d",
    "pyg-csr": "#8fb8a8",
    "mkl": "#7d6b91",
    "scipy": "#9a9a9a",
    "cusparse": "#2f6690",
    "cupy": "#7d6b91",
}
INK, FAINT = "#222222", "#dddddd"
LONGEST = 1.3  # times the largest median: where a whisker ends that one interrupted turn made


def load() -> Any:
    """Return matplotlib.pyplot, drawing into files. Raises InputError if it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("pictures need matplotlib; install it with `pip install mgg-hpc[plots]`") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    return plt


def constant(value: float) -> dict[str, float]:
    """Return the spread of a value that was measured once."""
    return dict.fromkeys(("min", "median", "max"), value)


def bar(
    axes: Any,
    name: str,
    at: float,
    width: float,
    spread: dict[str, float],
    top: float,
    said: str = "",
    **text: Any,
) -> None:
    """Draw a library's bar at ``at``, a whisker from min to max, ``top`` at most, and the median or ``said`` above."""
    low, middle, high = (spread[key] for key in ("min", "median", "max"))
    end = min(high, top)
    axes.bar(at, middle, width * 0.92, color=COLOURS[name], zorder=2)
    if high > low:
        axes.vlines(at, low, end, color=INK, linewidth=0.8, zorder=3)
    where = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom", "zorder": 5}
    axes.annotate(said or label(middle), (at, end), **where, **text)


def legend(figure: Any, plt: Any, names: list[str], lines: dict[str, str] | None = None) -> None:
    """Name the libraries' colours above the panels, and lines by their styles."""
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in names]
    handles += [
        plt.Line2D([], [], color=INK, linewidth=1, linestyle=style) for style in (lines or {}).values()
    ]
    labels = [*names, *(lines or {})]
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False, fontsize=8)


def save(figure: Any, found: Mapping[str, Any], path: Path, *, bottom: float, ranges: bool = True) -> None:
    """Write a picture into a file; in its lowest part, ``bottom``, what was measured, and where.

    ranges: whether panels show extremes too.
    """
    if "device" in found:
        where = found["device"]["name"]
    else:
        pages = {"huge": ", huge pages", "small": ", 4 KiB pages", "": ""}[found.get("pages", "")]
        where = f"{found['machine']['cpu']}, {found['threads']} threads{pages}"
    extremes = ", and their min and max" if ranges else ""
    said = f"{where}, medians of {found['turns']} turns{extremes}; {found['date'][:10]}"
    figure.text(0.01, 0.01, said, fontsize=7, color="#666666")
    figure.get_layout_engine().set(rect=(0, bottom, 1, 1 - bottom))
    figure.savefig(path, dpi=130)
    load().close(figure)


def label(value: float) -> str:
    """Return a number with three digits, or with all that stand before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
