"""The runtime's search for ps, dist and wpb while a job trains (MGG, OSDI '23, section 5.2).

Every trial is one epoch of the training, so no epoch is wasted. Each plan and size of rows has a search of its own, all
of which run at once: an epoch times the aggregations of each. On CPUs no geometry changes a bit of the results.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash

from ... import __version__
from ...data import user_cache
from ...errors import InputError
from ...plan.cuda_grid import tried
from ...plan.layout import RowFormat
from ...plan.tune import MOST_POINTS, REPEATS, ROUNDS, Knob, Search, Setting
from ...plan.workload import Plan
from ...runtime import cores
from ...runtime.backends import DEFAULT_GEOMETRY
from ...runtime.backends.arguments import BY_WIDTH, Geometry, rows_ahead
from ...runtime.backends.base import Meter
from .. import report, run_folder
from ..cuda_graph import Replayed
from ..job import Job
from .kept import Kept, goes_on
from .target import NAMES, Target, are_sound, digest, shown, value_of, values

FORMAT, VERSION = "mgg-tuning", 1
WARM_UP = 7  # epochs before the first trial: after so many calls it is known how wide rows are swept
LONGEST = WARM_UP + REPEATS * MOST_POINTS + 2 * ROUNDS  # epochs
WORTHWHILE = 1 << 20  # edges of a rank: smaller aggregations take less than a trial can tell apart
BLOCKS = range(9, 17)  # powers of 2: edges of a block on a CPU


class Tuner:
    """Finds the geometry of each target of a job. Construction and `before` and `after` are collective.

    The job's plan.tune says what may be tried: "never" nothing; "auto", on CPUs, knobs that the job file leaves to the
    default, where a rank sums at least a million edges; "full" all knobs, of jobs of any size.

    Settings that were found before, for the same graph, rows, ranks, device and version, are taken from the user's
    cache folder. ignored: lines about entries there that are damaged. A run that is resumed goes on with its own.
    """

    def __init__(
        self,
        job: Job,
        epochs: int,
        replayed: Replayed,
        folder: Path | None,
        *,
        known: bool = True,
        kept: Mapping[str, Kept] | None = None,
    ) -> None:
        """epochs: of training that are left. replayed: held while settings are measured. folder: of the run, on rank 0.

        known: whether what earlier runs have found is taken. kept: by this run's checkpoint, where it is resumed.
        """
        self._job, self._replayed, self._folder, self._waited = job, replayed, folder, 0
        self.targets: list[Target] = []
        self.ignored: list[str] = []
        asked = job.settings.plan.tune
        if asked == "never" or not (asked == "full" or (_keeps_bits(job) and _is_large(job))):
            return
        self.targets = list(_targets(job, full=asked == "full"))
        others = [target for target in self.targets if not self._take_kept(target, kept or {})]
        if known:
            self._take_known(others)
        room = epochs >= (1 if asked == "full" else 2) * LONGEST
        for target in self.targets:
            if target.source == "default" and target.search is None and room:
                target.search = Search(target.knobs, target.start, self._allowed(target))
        replayed.held = self.searching
        if kept or not (folder and (folder / run_folder.TUNING).exists()):
            self._write()

    @property
    def environment(self) -> dict[str, str]:
        """The knobs that a resumed run must have for equal bits; empty on CPUs, where no knob changes a bit."""
        job = self._job
        if _keeps_bits(job):
            return {}
        found = [f"{each.label}: {shown(each.geometry)}" for each in self.targets if each.source != "default"]
        return {"knobs": "; ".join([shown(job.backend.options.geometry), *found])}

    def documents(self) -> list[dict[str, Any]]:
        """Return the rows of tuning.json, which checkpoints keep."""
        return [each.document() for each in self.targets]

    @property
    def searching(self) -> bool:
        """Whether some setting is still to be measured."""
        return any(target.search is not None and target.search.setting is not None for target in self.targets)

    def before(self, epoch: int) -> None:
        """Give each target the geometry that this epoch is to measure."""
        if not self.searching or self._waited < WARM_UP:
            return
        for target in self.targets:
            search = target.search
            while search is not None and search.setting is not None:
                if self._retune(target, target.at(search.setting)):
                    target.epochs.append(epoch)
                    break
                target.epochs.append(epoch)
                search.tell(math.inf)  # the device cannot hold such a block
                self._settle(target, search)
        if not self.searching:
            self._advance()

    def after(self, meter: Meter) -> None:
        """Enter the times of the epoch's aggregations."""
        if not self.searching:
            return
        if self._waited < WARM_UP:
            self._waited += 1
            return
        mine = [meter.calls.get((each.plan, each.format.row_bytes), 0.0) for each in self.targets]
        slowest = [max(ranks) for ranks in zip(*self._job.comm.allgather(mine), strict=True)]
        for target, seconds in zip(self.targets, slowest, strict=True):
            if target.search is not None and target.search.setting is not None:
                target.search.tell(seconds)
                self._settle(target, target.search)
        self._advance()

    def _advance(self) -> None:
        """Write what was measured; let epochs be recorded once nothing is measured any more."""
        self._replayed.held = self.searching
        self._write()

    def _write(self) -> None:
        """Write tuning.json, if there is a run folder and something to say; training goes on where its disk is full."""
        if self._folder is not None and self.targets:
            found = {"format": FORMAT, "version": VERSION, "rows": self.documents()}
            with contextlib.suppress(InputError):
                run_folder.write_tuning(self._folder, found)

    def _settle(self, target: Target, search: Search) -> None:
        """Keep what a search has found, for this run and for later ones, if it has ended."""
        if search.setting is not None:
            return
        self._retune(target, target.at(search.best))
        target.geometry, target.source, target.gain = target.at(search.best), "measured", search.gain
        if self._job.comm.rank == 0:
            found = {"format": FORMAT, "version": VERSION, "key": target.key, "gain": target.gain}
            user_cache.write(_entry(target.key), found | {"chosen": values(target.geometry)})

    def _take_kept(self, target: Target, kept: Mapping[str, Kept]) -> bool:
        """Go on with a target where this run's checkpoint left it; return whether that knows of it. Collective."""
        before = kept.get(digest(target.key))
        if before is None:
            return False
        search = Search(target.knobs, target.start, self._allowed(target))
        if before.steps and not goes_on(search, before.steps):
            return False
        if before.source != "default":
            chosen = Geometry(**before.chosen) if are_sound(before.chosen, target) else None
            if chosen is None or not self._retune(target, chosen):
                return False
            target.geometry, target.source, target.gain = chosen, before.source, before.gain
        if before.steps:
            target.search, target.epochs = search, [step.epoch for step in before.steps]
        return True

    def _take_known(self, targets: Sequence[Target]) -> None:
        """Give targets the geometry that an earlier run has found. Rank 0 reads for all."""
        known: list[tuple[dict[str, Any] | None, str]] = []
        if self._job.comm.rank == 0:
            known = [_known(target) for target in targets]
        known = self._job.comm.bcast(known, root=0)
        self.ignored = [word for _, word in known if word]
        for target, (entry, _) in zip(targets, known, strict=True):
            if entry is not None and self._retune(target, Geometry(**entry["chosen"])):
                target.geometry, target.source = Geometry(**entry["chosen"]), "table"
                target.gain = entry["gain"]

    def _retune(self, target: Target, geometry: Geometry) -> bool:
        """Set a geometry on all ranks; return False where some rank's device cannot hold it. Collective.

        The other ranks have the target's own geometry then; a search sets its next or its best one on all ranks.
        """
        backend, fits = self._job.backend, True
        backend.stream.finish()
        try:
            backend.retune(target.plan, target.format, geometry)
        except InputError:
            fits = False
        everywhere = all(self._job.comm.allgather(fits))
        if fits and not everywhere:
            backend.retune(target.plan, target.format, target.geometry)
        return everywhere

    def _allowed(self, target: Target) -> Callable[[Setting], bool]:
        """Return whether a setting leaves every thread of the largest rank some blocks, on CPUs. Collective."""
        if not _keeps_bits(self._job):
            return lambda setting: True
        threads = self._job.backend.options.threads
        edges = target.plan.local_edges + target.plan.remote_edges
        most = max(self._job.comm.allgather(edges // (2 * threads)))

        def allowed(setting: Setting) -> bool:
            geometry = target.at(setting)
            return geometry.ps * geometry.wpb <= max(most, 1 << BLOCKS[0])

        return allowed


def report_found(tuner: Tuner, shown_here: bool) -> list[dict[str, Any]]:
    """Return the settings that were found, for summary.json; print them, and what was ignored, where asked to."""
    if shown_here:
        _print(tuner)
    found = [target for target in tuner.targets if target.source != "default"]
    return [{"rows": each.label, **values(each.geometry), "gain": round(each.gain, 4)} for each in found]


def _print(tuner: Tuner) -> None:
    for word in tuner.ignored:
        report.print_line(word)
    for target in tuner.targets:
        gain = f"{target.gain:.0%} less time than by default" if target.gain else "the default is the fastest"
        if target.source == "table":
            report.print_line(f"{target.label}: {shown(target.geometry)}; {gain}, known from an earlier run")
        elif target.source == "measured":
            found = f"found in {WARM_UP + len(target.epochs)} epochs"
            report.print_line(f"{target.label}: {shown(target.geometry)}; {gain}, {found}")
        elif target.search is not None:
            report.print_line(f"{target.label}: the search for ps, dist and wpb had not ended")


def _is_large(job: Job) -> bool:
    """Whether some rank sums enough edges for a search to be worthwhile. Collective."""
    plans = {id(each.forward): each.forward for each in job.layers}.values()
    edges = max((plan.local_edges + plan.remote_edges for plan in plans), default=0)
    return max(job.comm.allgather(edges)) >= WORTHWHILE


def _keeps_bits(job: Job) -> bool:
    """Whether no knob changes a bit, as on CPUs, where knobs are the size of blocks and how far rows are prefetched."""
    return job.backend.capabilities.keeps_bits


def _targets(job: Job, *, full: bool) -> Iterator[Target]:
    """Yield the aggregations of an epoch by plan and format, in the order of the layers. Collective."""
    graph = _fingerprint(job)
    found: dict[tuple[int, int], tuple[Plan, RowFormat, list[tuple[int, str]]]] = {}
    for direction, layer, plan, format in job.aggregations():
        found.setdefault((id(plan), format.row_bytes), (plan, format, []))[2].append((layer, direction))
    geometry = job.backend.options.geometry
    for plan, format, layers in found.values():
        knobs = _moved(job, geometry, plan, format, full=full)
        if not knobs:
            continue
        key = {
            **graph,
            "direction": layers[0][1],
            "transfer": plan.transfer,
            "dtype": str(format.dtype),
            "row_bytes": format.row_bytes,
            "default": values(geometry),
            "knobs": [knob.name for knob in knobs],
        }
        yield Target(plan, format, layers, key, knobs, geometry)


def _moved(job: Job, default: Geometry, plan: Plan, format: RowFormat, *, full: bool) -> list[Knob]:
    """Return the knobs that may be moved for rows of this format. full: also those that the job file sets."""
    if not _keeps_bits(job):  # kernels over edges have no wpb, and a plan of their own
        far = plan.transfer == "get" and not job.backend.capabilities.reaches_peers
        return [] if job.model.by_edge else gpu_knobs(default, far=far)
    given = {name for name in NAMES if not full and getattr(default, name) != getattr(DEFAULT_GEOMETRY, name)}
    if "ps" in given:
        given.add("wpb")
    return [knob for knob in cpu_knobs(default, format) if knob.name not in given]


def _fingerprint(job: Job) -> dict[str, Any]:
    """Return what a measurement depends on beside plan and rows. Collective."""
    part, device = job.part, job.backend.capabilities.device
    numbering: list[str] = []
    if job.comm.rank == 0:
        numbering = [xxhash.xxh3_64_hexdigest(each.data) for each in (part.bounds, part.slice.ids)]
    name = cores.processor() if device == "cpu" else torch.cuda.get_device_name(device)
    return {
        "graph": part.uuid,
        "numbering": job.comm.bcast(numbering, root=0),
        "model": job.settings.model.name,
        "ranks": job.comm.size,
        "threads": job.comm.allgather(job.backend.options.threads),
        "backend": job.backend.capabilities.name,
        "devices": sorted(set(job.comm.allgather(name))),
        "mgg": __version__,
    }


def cpu_knobs(default: Geometry, format: RowFormat) -> list[Knob]:
    """Return wpb, for blocks of 512 to 65,536 edges, and how far ahead rows are prefetched."""
    wpb = {max(1, 2**power // default.ps) for power in BLOCKS} | {default.wpb}
    by_width = rows_ahead(format.row_bytes)
    ahead = {distance: distance for distance in (0, by_width // 4, by_width // 2, 2 * by_width)}
    ahead[by_width] = BY_WIDTH
    if default.dist != BY_WIDTH:
        ahead[default.dist] = default.dist
    return [
        Knob("wpb", tuple(sorted(wpb))),
        Knob("dist", tuple(ahead[distance] for distance in sorted(ahead))),
    ]


def gpu_knobs(default: Geometry, *, far: bool = False) -> list[Knob]:
    """Return MGG's knobs, in the order of its search. far: also far_ps, where `get` fetches what no pointer reaches."""
    names = NAMES if far else NAMES[:3]
    return [Knob(name, tried(name, value_of(default, name))) for name in names]


def _entry(key: dict[str, Any]) -> str:
    """Return the name of a key's document in the cache folder."""
    return f"tuned/{digest(key)}.json"


def _known(target: Target) -> tuple[dict[str, Any] | None, str]:
    """Return the table's entry for a target, or None and, where there is a damaged one, a line about it."""
    found, word = user_cache.read(_entry(target.key), FORMAT, VERSION)
    if found is None:
        return None, word
    gain = found.get("gain")
    sound = isinstance(gain, int | float) and not isinstance(gain, bool) and math.isfinite(gain)
    sound = sound and are_sound(found.get("chosen"), target)
    if not sound or found.get("key") != target.key:
        return None, f"{user_cache.folder() / _entry(target.key)}: ignored, since it is damaged"
    return found, ""
