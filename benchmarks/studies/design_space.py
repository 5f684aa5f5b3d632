"""The design space as two heat maps, (ps, dist) and (wpb, dist), with the search's path (OSDI '23, figure 11).

    python benchmarks/studies/design_space.py rmat:17 --ranks 1 --threads 2 -o space.csv -o space.png
    python benchmarks/studies/design_space.py --device cuda --transfer get --share 0.2

The first map has the wpb that the search begins with, the second one the ps that it ends with. On CPUs a thread claims
ps x wpb edges at once, and rows are fetched dist edges ahead. Each setting takes turns with the default one, to whose
time ``relative_time`` is relative. Rows of the search's steps follow; and the found setting, the best of the four
fastest of the maps, which are measured once more, the default, and (1, 1, 1), where the paper's search begins: all in
turns, relative to the found one, with ``over_best_percent``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import command, options, run
from harness.ranks import Subject
from harness.results import TIMES, Results
from harness.study import Study, conditions, finish, measured

from mgg_hpc.errors import InputError
from mgg_hpc.plan.tune import Knob, Search
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.arguments import Geometry, rows_ahead

Setting = tuple[int, ...]  # ps, dist, wpb
Knobs = Mapping[str, Sequence[int]]

CPU_KNOBS = {
    "ps": (64, 128, 256, 512, 1024, 2048),
    "dist": (0, 8, 16, 32, 64, 128, 256),
    "wpb": (1, 4, 8, 16, 32, 64),
}
GPU_KNOBS = {"ps": (1, 2, 4, 8, 16, 32), "dist": (1, 2, 4, 8, 16), "wpb": (1, 2, 4, 8, 16)}
FIRST, AGAIN = (1, 1, 1), 4  # where the paper's search begins; fastest settings that are measured twice
SHOWN = ("ps", "dist", "wpb", *TIMES, "over_best_percent")


@command(__doc__)
@click.option("--width", type=options.WIDTH, default=64, help="Columns of rows.")
@click.option("--transfer", type=click.Choice(["direct", "get", "halo"]), default="direct")
@measured(turns=5)
def main(width: int, transfer: str, study: Study) -> None:
    subject = study.subject(width, study.shares[0])
    with mpi.agree(mpi.world()):
        if transfer == "halo" and study.device == "cpu":
            raise InputError(
                "--transfer halo: on CPUs a halo's work is not cut by settings; take direct or get"
            )
        if transfer == "direct" and not subject.reaches_peers:
            raise InputError("--transfer direct: no pointer reaches the other ranks' rows; take get or halo")
    results = Results("design space", **conditions(study.graph, subject)[0], width=width, transfer=transfer)
    space = Space(subject, transfer, study.turns)
    found = space.search()
    space.measure(results, settings_of_maps(space.knobs, found.start, found.best), found.start)
    for number, step in enumerate(found.steps):
        results.add(f"search: {step.knob}", [1e3 * step.seconds], **columns(step.setting), step=number)
    space.measure_again(results, found)
    subject.close()
    finish(results, study.files, SHOWN)


class Space:
    """The settings of an aggregation by one transfer. Collective."""

    def __init__(self, subject: Any, transfer: str, turns: int) -> None:
        self.subject, self.transfer, self.turns = subject, transfer, turns
        usual, given = subject.geometry, CPU_KNOBS if isinstance(subject, Subject) else GPU_KNOBS
        dist = usual.dist
        if dist < 0:  # by the width of rows: the value that is nearest
            dist = min(given["dist"], key=lambda each: abs(each - rows_ahead(subject.format.row_bytes)))
        self.start: Setting = (usual.ps, dist, usual.wpb)
        pairs = zip(given.items(), self.start, strict=True)
        self.knobs = {name: tuple(sorted({*values, value})) for (name, values), value in pairs}
        self.cut = lru_cache(maxsize=1)(self._cut)  # a setting is checked, and then measured

    def _cut(self, setting: Setting) -> Any:
        """Return the aggregation at a setting; None where a GPU cannot hold a block."""
        try:
            return self.subject.cut(self.transfer, Geometry(*setting))
        except InputError:
            return None

    def search(self) -> Search:
        """Search as a training does, and return the search."""

        def seconds(setting: Setting) -> float:
            ms, _ = self.subject.measure({"setting": self.cut(setting)}, self.turns)
            return median(ms["setting"]) / 1e3

        knobs = [Knob(name, values) for name, values in self.knobs.items()]
        found = Search(knobs, self.start, lambda setting: self.cut(setting) is not None)
        while found.setting is not None:
            found.tell(seconds(found.setting))
        return found

    def measure(self, results: Results, settings: Sequence[Setting], start: Setting) -> None:
        """Add a row for each setting that fits, measured in turns with the start."""
        first = self._cut(start)
        for setting in settings:
            if (call := self.cut(setting)) is not None:
                ms, _ = self.subject.measure({"start": first, "setting": call}, self.turns)
                both = min(map(len, ms.values()))  # the slow have fewer turns
                results.add("map", ms["setting"][:both], ms["start"][:both], **columns(setting))

    def measure_again(self, results: Results, found: Search) -> None:
        """Add the found setting, the best of the maps, the default and FIRST, in turns.

        The least of so many medians is a lucky one, so the fastest few settings of the maps take part.
        """
        maps = sorted(
            (row for row in results.rows if row["variant"] == "map"), key=lambda row: row["relative_time"]
        )
        fastest = [tuple(row[name] for name in self.knobs) for row in maps[:AGAIN]]
        settings = dict.fromkeys([found.best, *fastest, self.start, FIRST])
        calls = {setting: call for setting in settings if (call := self._cut(setting)) is not None}
        ms, _ = self.subject.measure(calls, 2 * self.turns)
        medians = {setting: median(taken) for setting, taken in ms.items()}
        best = min((setting for setting in calls if setting != FIRST), key=medians.__getitem__)
        named = (("found", found.best), ("best", best), ("default", self.start), ("first", FIRST))
        for name, setting in named:
            if setting in calls:
                over = round(100 * (medians[setting] / medians[best] - 1), 2)
                results.add(name, ms[setting], ms[found.best], **columns(setting), over_best_percent=over)


def settings_of_maps(knobs: Knobs, start: Setting, best: Setting) -> list[Setting]:
    """Return the settings of both maps."""
    left = [(ps, dist, start[2]) for ps in knobs["ps"] for dist in knobs["dist"]]
    right = [(best[0], dist, wpb) for wpb in knobs["wpb"] for dist in knobs["dist"]]
    return list(dict.fromkeys([*left, *right, start, best]))


def columns(setting: Setting) -> dict[str, int]:
    """Return the columns of a setting."""
    return dict(zip(("ps", "dist", "wpb"), setting, strict=True))


if __name__ == "__main__":
    run(main)
