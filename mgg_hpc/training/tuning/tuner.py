"""The runtime's search for ps, dist and wpb while a job trains (MGG, OSDI '23, section 5.2).

Every trial is one epoch of the training, so no epoch is wasted. Each plan and size of rows has a search of its own, all
of which run at once: an epoch times the aggregations of each. On CPUs no geometry changes a bit of the results.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash

from ... import __version__
from ...data import user_cache
from ...errors import InputError
from ...nn.workspace import row_format
from ...plan.layout import RowFormat
from ...plan.tune import MOST_POINTS, ROUNDS, Knob, Search, Setting
from ...plan.workload import Plan
from ...runtime import cores
from ...runtime.backends.arguments import BY_WIDTH, Geometry
from ...runtime.backends.base import Meter
from .. import report, run_folder
from ..cuda_graph import Replayed
from ..job import Job

FORMAT, VERSION = "mgg-tuning", 1
WARM_UP = 4  # epochs before the first trial: they touch new pages, and choose how wide rows are swept
LONGEST = WARM_UP + MOST_POINTS + 2 * ROUNDS  # epochs
WORTHWHILE = 1 << 20  # edges of a rank: smaller aggregations take less than a trial can tell apart
BLOCKS = range(9, 17)  # powers of 2: edges of a block on a CPU
AHEAD_BYTES = 8192  # that BY_WIDTH prefetches (cuda/python/module_host.h)
NAMES = ("ps", "dist", "wpb")


@dataclass
class Target:
    """Aggregations whose geometry is searched: over a plan, of rows of one format.

    layers: whose forward or backward they are, from 1 on. key: what the table of settings that were found knows them
    by. knobs: those of NAMES that are moved, and their values. geometry: the present one. source: "default", "table" or
    "measured".
    """

    plan: Plan
    format: RowFormat
    layers: list[tuple[int, str]]
    key: dict[str, Any]
    knobs: list[Knob]
    geometry: Geometry
    source: str = "default"
    search: Search | None = None
    gain: float = 0.0  # share of the default's time that was saved when it was measured
    epochs: list[int] = field(default_factory=list)  # of each step of the search

    @property
    def label(self) -> str:
        """Name of the target in reports."""
        layers = ", ".join(f"layer {layer} {direction}" for layer, direction in self.layers)
        return f"{layers} ({self.plan.transfer}, rows of {self.format.row_bytes} bytes)"

    def at(self, setting: Setting) -> Geometry:
        """Return the geometry of a setting of the knobs."""
        moved = dict(zip((knob.name for knob in self.knobs), setting, strict=True))
        return Geometry(**{**{name: getattr(self.geometry, name) for name in NAMES}, **moved})

    @property
    def start(self) -> Setting:
        """The setting of the present geometry."""
        return tuple(getattr(self.geometry, knob.name) for knob in self.knobs)

    def document(self) -> dict[str, Any]:
        """Return what is kept of it, in a run's tuning.json."""
        steps = self.search.steps if self.search else []
        return {
            "rows": self.label,
            "source": self.source,
            "steps": [
                {
                    "knob": step.knob,
                    "setting": _knobs(self.at(step.setting)),
                    "seconds": step.seconds if math.isfinite(step.seconds) else None,  # it did not fit
                    "epoch": epoch,
                }
                for step, epoch in zip(steps, self.epochs, strict=True)
            ],
            "chosen": _knobs(self.geometry),
            "gain": round(self.gain, 4),
        }


class Tuner:
    """Finds the geometry of each target of a job. Construction and `before` and `after` are collective.

    job: whose plan.tune says what may be tried: "never" nothing, "auto" what keeps the results' bits, where a rank
    sums at least a million edges; "full" all knobs, of jobs of any size.

    Settings that were found before, for the same graph, rows, ranks, device and version, are taken from the user's
    cache folder. others: lines about entries there that were ignored.
    """

    def __init__(
        self, job: Job, epochs: int, replayed: Replayed, folder: Path | None, *, known: bool = True
    ) -> None:
        """epochs: of training that are left. replayed: records none while settings are measured. folder: on rank 0.

        known: whether what earlier runs have found is taken.
        """
        self._job, self._replayed, self._folder, self._waited = job, replayed, folder, 0
        self.targets: list[Target] = []
        self.others: list[str] = []
        asked = job.settings.plan.tune
        if asked == "never" or not (asked == "full" or _is_large(job)):
            return
        self.targets = list(_targets(job, full=asked == "full"))
        if known:
            self._take_known()
        room = epochs >= (1 if asked == "full" else 2) * LONGEST
        for target in self.targets:
            if target.source == "default" and room:
                target.search = Search(target.knobs, target.start, self._allowed(target))
        replayed.held = self.searching
        self._write()

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
                if target.search.setting is None:
                    self._settle(target, target.search)
        if not self.searching:
            self._replayed.held = False
            self._write()

    def _write(self) -> None:
        """Write tuning.json, if there is a run folder and something to say."""
        if self._folder is not None and self.targets:
            rows = [each.document() for each in self.targets]
            run_folder.write_tuning(self._folder, {"format": FORMAT, "version": VERSION, "rows": rows})

    def _settle(self, target: Target, search: Search) -> None:
        """Keep what a search has found, for this run and for later ones."""
        self._retune(target, target.at(search.best))
        target.geometry, target.source, target.gain = target.at(search.best), "measured", search.gain
        if self._job.comm.rank == 0:
            found = {"format": FORMAT, "version": VERSION, "key": target.key, "gain": target.gain}
            user_cache.write(_entry(target.key), found | {"chosen": _knobs(target.geometry)})

    def _take_known(self) -> None:
        """Give targets the geometry that an earlier run has found. Rank 0 reads for all."""
        known: list[tuple[dict[str, Any] | None, str]] = []
        if self._job.comm.rank == 0:
            known = [_known(target) for target in self.targets]
        known = self._job.comm.bcast(known, root=0)
        self.others = [word for _, word in known if word]
        for target, (entry, _) in zip(self.targets, known, strict=True):
            if entry is not None and self._retune(target, Geometry(**entry["chosen"])):
                target.geometry, target.source = Geometry(**entry["chosen"]), "table"
                target.gain = entry["gain"]

    def _retune(self, target: Target, geometry: Geometry) -> bool:
        """Set a geometry; return False, the same on all ranks, where some rank's device cannot hold it."""
        backend, fits = self._job.backend, True
        backend.stream.finish()
        try:
            backend.retune(target.plan, target.format, geometry)
        except InputError:
            fits = False
        return all(self._job.comm.allgather(fits))

    def _allowed(self, target: Target) -> Any:
        """Return whether a setting leaves every thread some blocks, on CPUs. Collective."""
        threads = self._job.backend.options.threads
        edges = target.plan.local_edges + target.plan.remote_edges
        most = min(self._job.comm.allgather(edges // (2 * threads)))
        if not _on_cpu(self._job):
            return lambda setting: True

        def allowed(setting: Setting) -> bool:
            geometry = target.at(setting)
            return geometry.ps * geometry.wpb <= max(most, 1 << BLOCKS[0])

        return allowed


def shown(geometry: Geometry) -> str:
    """Return the knobs of a geometry for reports."""
    values = ("auto" if value == BY_WIDTH else str(value) for value in _knobs(geometry).values())
    return ", ".join(f"{name} {value}" for name, value in zip(NAMES, values, strict=True))


def print_found(tuner: Tuner) -> None:
    """Print a line for each target that has another geometry than the default, and for each entry that was ignored."""
    for word in tuner.others:
        report.print_line(word)
    for target in tuner.targets:
        if target.source != "default":
            found = "known from an earlier run"
            if target.source == "measured":
                found = f"found in {target.epochs[-1]} epochs"
            gain = (
                f"{target.gain:.0%} less time than by default"
                if target.gain
                else "the default is the fastest"
            )
            report.print_line(f"{target.label}: {shown(target.geometry)}; {gain}, {found}")


def _is_large(job: Job) -> bool:
    """Whether some rank sums enough edges for a search to be worthwhile. Collective."""
    plans = {id(each.forward): each.forward for each in job.layers}.values()
    edges = max((plan.local_edges + plan.remote_edges for plan in plans), default=0)
    return max(job.comm.allgather(edges)) >= WORTHWHILE


def _on_cpu(job: Job) -> bool:
    return job.backend.capabilities.device == "cpu"


def _targets(job: Job, *, full: bool) -> Iterator[Target]:
    """Yield the aggregations of an epoch by plan and format, in the order of the layers. Collective."""
    graph = _fingerprint(job)
    found: dict[tuple[int, int], tuple[Plan, RowFormat, list[tuple[int, str]]]] = {}
    passes = (
        ("forward", job.model.exchanged(job.sparse)),
        ("backward", job.model.exchanged_back(job.sparse)),
    )
    for direction, widths in passes:
        for layer, (adjacency, width) in enumerate(zip(job.layers, widths, strict=True), 1):
            if not width:
                continue
            plan, format = getattr(adjacency, direction), row_format(width, job.dtype)
            found.setdefault((id(plan), format.row_bytes), (plan, format, []))[2].append((layer, direction))
    order = {number: place for place, number in enumerate(dict.fromkeys(key[0] for key in found))}
    geometry = job.backend.options.geometry
    for (number, row_bytes), (plan, format, layers) in found.items():
        knobs = (
            cpu_knobs(geometry, format)
            if _on_cpu(job)
            else gpu_knobs(geometry, exact=not full or job.model.by_edge)
        )
        key = {
            **graph,
            "plan": order[number],
            "transfer": plan.transfer,
            "row_bytes": row_bytes,
            "default": _knobs(geometry),
            "knobs": [knob.name for knob in knobs],
        }
        yield Target(plan, format, layers, key, knobs, geometry)


def _fingerprint(job: Job) -> dict[str, Any]:
    """Return what a measurement depends on beside plan and rows. Collective."""
    part, device = job.part, job.backend.capabilities.device
    numbering = [xxhash.xxh3_64_hexdigest(each.tobytes()) for each in (part.bounds, part.slice.ids)]
    name = cores.processor() if device == "cpu" else torch.cuda.get_device_name(device)
    return {
        "graph": part.uuid,
        "numbering": job.comm.bcast(numbering, root=0),
        "model": job.settings.model.name,
        "ranks": job.comm.size,
        "threads": job.comm.allgather(job.backend.options.threads),
        "backend": job.backend.capabilities.name,
        "device": job.comm.bcast(name, root=0),
        "mgg": __version__,
    }


def cpu_knobs(default: Geometry, format: RowFormat) -> list[Knob]:
    """Return wpb, for blocks of 512 to 65,536 edges, and how far ahead rows are prefetched."""
    wpb = {max(1, 2**power // default.ps) for power in BLOCKS} | {default.wpb}
    by_width = min(64, max(8, AHEAD_BYTES // format.row_bytes))
    ahead = {distance: distance for distance in (0, by_width // 4, by_width // 2, 2 * by_width, 4 * by_width)}
    ahead[by_width] = BY_WIDTH
    if default.dist != BY_WIDTH:
        ahead[default.dist] = default.dist
    return [
        Knob("wpb", tuple(sorted(wpb))),
        Knob("dist", tuple(ahead[distance] for distance in sorted(ahead))),
    ]


def gpu_knobs(default: Geometry, *, exact: bool) -> list[Knob]:
    """Return MGG's knobs. exact: only those that change no bit: hubs are cut by ps and dist."""

    def powers(most: int, value: int) -> tuple[int, ...]:
        return tuple(sorted({2**power for power in range(most + 1)} | {value}))

    wpb = Knob("wpb", powers(4, default.wpb))
    if exact:
        return [wpb]
    return [Knob("ps", powers(5, default.ps)), Knob("dist", powers(4, default.dist)), wpb]


def _knobs(geometry: Geometry) -> dict[str, int]:
    return {name: getattr(geometry, name) for name in NAMES}


def _entry(key: dict[str, Any]) -> str:
    """Return the name of a key's document in the cache folder."""
    return f"tuned/{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.json"


def _known(target: Target) -> tuple[dict[str, Any] | None, str]:
    """Return the table's entry for a target, or None and a word where it is not usable."""
    found, word = user_cache.read(_entry(target.key), FORMAT, VERSION)
    if found is None:
        return None, word
    chosen, gain = found.get("chosen"), found.get("gain")
    values = {knob.name: knob.values for knob in target.knobs}
    sound = isinstance(chosen, dict) and chosen.keys() == set(NAMES) and isinstance(gain, int | float)
    for name in NAMES if sound else ():
        here = getattr(target.geometry, name)
        value = chosen[name] if isinstance(chosen, dict) else None
        sound = sound and type(value) is int and value in values.get(name, (here,))
    if not sound or found.get("key") != target.key:
        return None, f"{user_cache.folder() / _entry(target.key)}: ignored, since it is damaged"
    return found, ""
