"""The palette and the style of all pictures: reports, benchmarks and documents.

Colours are Okabe and Ito's ("Color Universal Design", 2008), in an order of different lightness, so that they can be
told apart without colour vision and in a grey print; lines also differ in their marks, bars in their hatches. Pictures
have a white background, also in dark mode.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError

INK, MUTED, GRID, SHADE = "#222222", "#5f6b76", "#dddddd", "#eef2f5"
COLOURS = ("#0072b2", "#d55e00", "#009e73", INK, "#e69f00", "#56b4e9", "#cc79a7", "#999999")
MAIN, OTHER = COLOURS[0], "#b7c9d6"  # bars of what is looked at, and of what it is compared with
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "--", "xx", "\\\\", "||", "++", "/-", "/|")  # few lines: each is written into a report
WIDTH, DPI = 6.0, 130  # inches, at which text can be read on a screen of 390 pixels
STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "hatch.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a name may have dollar signs
}


def load() -> Any:
    """Return matplotlib.pyplot, drawing into files in this style. Raises InputError if it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("pictures need matplotlib; install it with `pip install mgg-hpc[plots]`") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    return plt
