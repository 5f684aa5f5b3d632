"""Drawing with matplotlib, which is loaded here, when a picture is asked for, and nowhere else."""

from __future__ import annotations

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
    """matplotlib.pyplot, drawing into files. Raises InputError if it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("--plot needs matplotlib; install it with `pip install mgg-hpc[plots]`") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    return plt


def caption(figure: Any, found: dict[str, Any], *, ranges: bool = True) -> None:
    """Write below the panels what was measured, and where. ranges: whether panels show extremes too."""
    if "device" in found:
        where = found["device"]["name"]
    else:
        pages = {"huge": "huge pages", "small": "4 KiB pages"}[found["pages"]]
        where = f"{found['machine']['cpu']}, {found['threads']} threads, {pages}"
    extremes = ", and their min and max" if ranges else ""
    figure.text(
        0.01,
        0.01,
        f"{where}, medians of {found['turns']} turns{extremes}; {found['date'][:10]}",
        fontsize=7,
        color="#666666",
    )


def label(value: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
