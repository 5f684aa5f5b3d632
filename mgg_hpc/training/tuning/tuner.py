"""Search for ps, dist and wpb while a job trains (MGG, OSDI '23, section 5.2).

Every trial is one epoch of the training, so no epoch is wasted. Each plan and format of rows has its own search, and
all run at the same time: an epoch times the aggregations of each. On CPUs no geometry changes a bit of the results.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash

from ... import __version__
from ...data import user_cache
from ...errors import InputError
from ...plan.cuda_grid import tried
from ...plan.layout import RowFormat
from ...plan.tune import MOST_POINTS, REPEATS, ROUNDS, Knob, Search, Setting
from ...runtime import cores
from ...runtime.backends import DEFAULT_GEOMETRY
from ...runtime.backends.arguments import BY_WIDTH, Geometry, rows_ahead
from ...runtime.backends.base import Meter
from ...sizes import counted
from .. import report, run_folder
from ..cuda_graph import Replayed
from ..job import Exchange, Job
from .target import NAMES, Source, Target, TunedRow, digest, shown, value_of, values

FORMAT, VERSION = "mgg-tuning", 1
WARM_UP = 7  # epochs before the first trial: after this many calls the column slices of wide rows are known
LONGEST = WARM_UP + REPEATS * MOST_POINTS + 2 * ROUNDS  # epochs of a search
WORTHWHILE = 1 << 20  # edges per rank: shorter aggregations do not tell settings apart
BLOCKS = range(9, 17)  # exponents of 2: number of edges that a CPU thread takes at a time


class Tuner:
    """Finds the geometry of each target of a job. Construction, `before` and `after` are collective.

    The job's plan.tune says what may be tried: "never" nothing; "auto", on CPUs, knobs that the job file leaves to the
    default, if a rank sums at least a million edges; "full" all knobs, for jobs of any size. Settings found by an
    earlier run for the same graph, rows, ranks, device and version are taken from the user's cache folder. A resumed
    run continues its own searches.

    Args:
        epochs: number of epochs of training that are left.
        replayed: CUDA graph of the training step, which is not recorded while settings are measured.
        folder: the run folder on rank 0; None on other ranks.
        known: False to ignore the user's cache folder.
        kept: tuning rows of the checkpoint that the run is resumed from; empty without one.
    """

    def __init__(
        self,
        job: Job,
        epochs: int,
        replayed: Replayed,
        folder: Path | None,
        *,
        known: bool = True,
        kept: list[TunedRow] | None = None,
    ) -> None:
        self._job, self._replayed, self._folder, self._waited = job, replayed, folder, 0
        self._keeps_bits = job.backend.capabilities.keeps_bits
        self.targets: list[Target] = []
        self.ignored: list[str] = []  # lines about damaged entries of the cache folder
        asked = job.settings.plan.tune
        if asked == "never" or not (asked == "full" or (self._keeps_bits and _is_large(job))):
            return
        self.targets = list(_targets(job, full=asked == "full"))
        rows = {each.key: each for each in kept or ()}
        new = [target for target in self.targets if not self._take_kept(target, rows)]
        if known:
            self._take_known(new)
        room = epochs >= (1 if asked == "full" else 2) * LONGEST
        for target in self.targets:
            if target.source == "default" and target.search is None and room:
                target.search = Search(target.knobs, target.start, self._allowed(target))
        replayed.held = self.searching
        if kept or not (folder and (folder / run_folder.TUNING).exists()):
            self._write()

    @property
    def environment(self) -> dict[str, str]:
        """Knobs that a resumed run needs for bitwise equal results; empty on CPUs, where none changes a bit."""
        if self._keeps_bits:
            return {}
        found = [f"{each.label}: {shown(each.geometry)}" for each in self.targets if each.source != "default"]
        return {"knobs": "; ".join([shown(self._job.backend.options.geometry), *found])}

    def rows(self) -> list[TunedRow]:
        """Return one row per target, as tuning.json and checkpoints store them."""
        return [target.row() for target in self.targets]

    @property
    def searching(self) -> bool:
        """True while some target's search has settings left to measure."""
        return any(target.searching for target in self.targets)

    def before(self, epoch: int) -> None:
        """Set each target's geometry for this epoch to the next setting of its search.

        Call before each epoch.
        """
        if not self.searching or self._waited < WARM_UP:
            return
        for target in self.targets:
            search = target.search
            while search is not None and search.setting is not None:
                fits = self._retune(target, target.at(search.setting))
                target.epochs.append(epoch)
                if fits:
                    break
                search.tell(math.inf)  # the device cannot hold such a block
                self._settle(target, search)
        if not self.searching:
            self._advance()

    def after(self, meter: Meter) -> None:
        """Give each search the time of its target's aggregations in this epoch. Call after each epoch.

        meter: the epoch's counts and times.
        """
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
        """Write tuning.json, and allow recording of CUDA graphs once all searches have ended."""
        self._replayed.held = self.searching
        self._write()

    def _write(self) -> None:
        """Write tuning.json if there is a run folder and a target; training continues if its disk is full."""
        if self._folder is not None and self.targets:
            found = {"format": FORMAT, "version": VERSION, "rows": msgspec.to_builtins(self.rows())}
            with contextlib.suppress(InputError):
                run_folder.write_json(self._folder / run_folder.TUNING, found)

    def _settle(self, target: Target, search: Search) -> None:
        """If a search has ended, set the best geometry, and store it in the cache folder for later runs."""
        if search.setting is not None:
            return
        geometry = target.at(search.best)
        self._retune(target, geometry)
        target.geometry, target.source, target.gain = geometry, "measured", search.gain
        if self._job.comm.rank == 0:
            found = {"format": FORMAT, "version": VERSION, "key": target.key, "gain": target.gain}
            user_cache.write(_entry(target), found | {"chosen": values(target.geometry)})

    def _take(self, target: Target, geometry: Geometry, source: Source, gain: float) -> bool:
        """Set a target's geometry and return True; return False if it does not fit some rank's device.

        Collective. source, gain: where the geometry is from, and the fraction of time that it saves, as
        reported.
        """
        if not self._retune(target, geometry):
            return False
        target.geometry, target.source, target.gain = geometry, source, gain
        return True

    def _take_kept(self, target: Target, kept: Mapping[str, TunedRow]) -> bool:
        """Continue a target's search where the checkpoint has it. Collective.

        Returns False if the checkpoint has no row for this target, or one that does not fit it. kept: rows of
        the checkpoint, by digest of the target's key.
        """
        before = kept.get(digest(target.key))
        if before is None:
            return False
        search = Search(target.knobs, target.start, self._allowed(target))
        for step in before.steps:  # a search is deterministic, so it asks for the same settings again
            setting = tuple(step.setting.get(knob.name) for knob in target.knobs)
            if search.setting is None or search.setting != setting:
                return False
            search.tell(math.inf if step.seconds is None else step.seconds)
        if before.source != "default":
            if not target.accepts(before.chosen):
                return False
            if not self._take(target, Geometry(**before.chosen), before.source, before.gain):
                return False
        if before.steps:
            target.search, target.epochs = search, [step.epoch for step in before.steps]
        return True

    def _take_known(self, targets: list[Target]) -> None:
        """Set the geometries that earlier runs stored in the user's cache folder, which rank 0 reads.

        Collective.
        """
        known: list[tuple[dict[str, Any] | None, str]] = []
        if self._job.comm.rank == 0:
            known = [_known(target) for target in targets]
        known = self._job.comm.bcast(known, root=0)
        self.ignored = [word for _, word in known if word]
        for target, (entry, _) in zip(targets, known, strict=True):
            if entry is not None:
                self._take(target, Geometry(**entry["chosen"]), "table", entry["gain"])

    def _retune(self, target: Target, geometry: Geometry) -> bool:
        """Set a target's geometry on all ranks; return False if it does not fit some rank's device. Collective.

        In that case all other ranks return to the geometry that the target had; the caller sets another one.
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
        """Return a predicate that is True for settings with enough blocks of edges for every thread.

        Collective. Blocks are counted on the rank with the most edges.
        """
        if not self._keeps_bits:
            return lambda setting: True
        threads = self._job.backend.options.threads
        edges = target.plan.local_edges + target.plan.remote_edges
        most = max(1 << BLOCKS[0], *self._job.comm.allgather(edges // (2 * threads)))
        return lambda setting: target.at(setting).ps * target.at(setting).wpb <= most


def report_found(tuner: Tuner, *, first: bool, verbose: bool) -> list[dict[str, Any]]:
    """Print the outcome of the searches on one rank, and return the geometries found, for summary.json.

    first: True on the rank that prints; it names the damaged cache files that were ignored. verbose: True to
    print the geometry of each target as well. Returns one dictionary for each target whose geometry is not the
    default.
    """
    for word in tuner.ignored if first else ():
        report.print_line(word)
    for target in tuner.targets if first and verbose else ():
        gain = f"{target.gain:.0%} less time than by default" if target.gain else "the default is the fastest"
        found = f"{target.label}: {shown(target.geometry)}; {gain}"
        if target.source == "table":
            report.print_line(f"{found}, known from an earlier run")
        elif target.source == "measured":
            report.print_line(f"{found}, found in {counted(WARM_UP + len(target.epochs), 'epoch')}")
        elif target.search is not None:
            report.print_line(f"{target.label}: the search for ps, dist and wpb had not ended")
    chosen = [target for target in tuner.targets if target.source != "default"]
    return [{"rows": each.label, **values(each.geometry), "gain": round(each.gain, 4)} for each in chosen]


def _is_large(job: Job) -> bool:
    """Return True if some rank sums at least WORTHWHILE edges in a layer. Collective."""
    edges = max((each.forward.local_edges + each.forward.remote_edges for each in job.layers), default=0)
    return max(job.comm.allgather(edges)) >= WORTHWHILE


def _targets(job: Job, *, full: bool) -> Iterator[Target]:
    """Yield a target for each pair of plan and row format that an epoch aggregates with. Collective.

    Those of the forward pass come first. full: also tune knobs that the job file sets.
    """
    graph, geometry = _fingerprint(job), job.backend.options.geometry
    found: dict[tuple[int, int], list[Exchange]] = {}
    for each in sorted(job.exchanges(), key=lambda each: each.direction == "backward"):
        found.setdefault((id(each.plan), each.format.row_bytes), []).append(each)
    for same in found.values():
        plan, format = same[0].plan, same[0].format
        knobs = _moved(job, geometry, plan.transfer, format, full=full)
        if knobs:
            key = {
                **graph,
                "direction": same[0].direction,
                "transfer": plan.transfer,
                "dtype": str(format.dtype),
                "row_bytes": format.row_bytes,
                "default": values(geometry),
                "knobs": [knob.name for knob in knobs],
            }
            yield Target(plan, format, [(each.layer, each.direction) for each in same], key, knobs, geometry)


def _moved(job: Job, default: Geometry, transfer: str, format: RowFormat, *, full: bool) -> list[Knob]:
    """Return the knobs to search for rows of this format. full: include those that the job file sets.

    default: the job's geometry. transfer: transfer of the plan.
    """
    if not job.backend.capabilities.keeps_bits:  # kernels over edges have no wpb, and a plan of their own
        far = transfer == "get" and not job.backend.capabilities.reaches_peers
        return [] if job.model.by_edge else gpu_knobs(default, far=far)
    given = {name for name in NAMES if not full and getattr(default, name) != getattr(DEFAULT_GEOMETRY, name)}
    if "ps" in given:
        given.add("wpb")
    return [knob for knob in cpu_knobs(default, format) if knob.name not in given]


def _fingerprint(job: Job) -> dict[str, Any]:
    """Return what identifies a measurement besides plan and row format: graph, model, ranks, devices.

    Collective.
    """
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
    """Return the knobs of CPUs with the values to try, and those of ``default``.

    They are wpb, for blocks of 512 to 65,536 edges, and dist, the number of rows by which prefetching is ahead.
    """
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
    """Return the knobs ps, dist and wpb with the values to try, in MGG's order of search.

    far: include far_ps, for the transfer "get" if it fetches rows that no pointer reaches.
    """
    names = NAMES if far else NAMES[:3]
    return [Knob(name, tried(name, value_of(default, name))) for name in names]


def _entry(target: Target) -> str:
    """Return the name of a target's file in the user's cache folder."""
    return f"tuned/{digest(target.key)}.json"


def _known(target: Target) -> tuple[dict[str, Any] | None, str]:
    """Return (content of a target's cache file, ""), or (None, message); "" unless the file is damaged."""
    found, word = user_cache.read(_entry(target), FORMAT, VERSION)
    if found is None:
        return None, word
    gain = found.get("gain")
    sound = isinstance(gain, int | float) and not isinstance(gain, bool) and math.isfinite(gain)
    if not (sound and target.accepts(found.get("chosen")) and found.get("key") == target.key):
        return None, f"{user_cache.folder() / _entry(target)}: ignored, since it is damaged"
    return found, ""
