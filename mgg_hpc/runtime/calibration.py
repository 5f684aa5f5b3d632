"""The calibration of this host: costs of sums, products and transfers, kept in the user's cache folder.

Each number of ranks is measured by that many processes at once, since they share caches, memory and cores: the cost
model (`plan.cost_model`) takes the figures of a rank among so many. `mgg doctor --calibrate` measures
(`kernel_costs`).
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from .. import __version__
from ..data import user_cache
from ..errors import InputError
from ..plan.cost_model import Gather, RowCost, System
from . import cores

FORMAT, VERSION = "mgg-calibration", 2
HOW = "mgg doctor --calibrate"
NOTHING = RowCost(0.0, 0.0)
UNWRITABLE = (
    "no calibration can be kept: the user's cache folder is not writable; set XDG_CACHE_HOME to another"
)


@dataclass(frozen=True)
class Measured:
    """Costs of each rank, measured while ``ranks`` ranks of this host work at once. Other fields are those of `System`.

    threads: of each rank. layer and stream are measured last, by trainings (tools/model_calibrate.py).
    """

    ranks: int
    threads: int
    gather: Gather
    mixed: dict[str, Gather]
    destination: RowCost
    segment: RowCost
    dense: tuple[tuple[int, float], ...]
    draw: float
    within: dict[str, RowCost]
    fixed: dict[str, float]
    layer: float = 0.0
    stream: RowCost = NOTHING


@dataclass(frozen=True)
class Calibration:
    """The measurements of a host. cores: that its processes may use. when: UTC."""

    host: str
    cpu: str
    cores: int
    when: str
    measured: list[Measured]
    format: str = FORMAT
    version: int = VERSION
    mgg: str = __version__
    cache_bytes: int = field(default_factory=lambda: cores.cache_bytes() // 4)  # as HostBackend has it

    def system(self, ranks: int) -> System:
        """Return this host for a number of ranks: as measured, or scaled from the nearest number that was measured.

        Raises InputError for several ranks where one alone was measured.
        """
        near = min(self.measured, key=lambda each: abs(np.log(each.ranks / ranks)))
        moving = near
        if not near.within and ranks > 1:
            several = [each for each in self.measured if each.within]
            if not several:
                raise InputError(f"this host was calibrated with one rank alone; run '{HOW} --ranks 1,2,4'")
            moving = min(several, key=lambda each: each.ranks)
        # The cost of each rank grows with the number of ranks that share this machine.
        share = ranks / near.ranks
        return System(
            name="this",
            ranks_a_node=max(ranks, 1),
            gather=_slower(near.gather, share),
            mixed={name: _slower(each, ranks / moving.ranks) for name, each in moving.mixed.items()},
            destination=RowCost(share * near.destination.row, share * near.destination.byte),
            segment=RowCost(share * near.segment.row, share * near.segment.byte),
            dense=tuple((width, rate / share) for width, rate in near.dense),
            stream=RowCost(share * near.stream.row, share * near.stream.byte),
            cold=share * near.stream.byte,
            draw=share * near.draw,
            layer=share * near.layer,
            step=0.0,
            within=moving.within or dict.fromkeys(("direct", "get", "halo"), NOTHING),
            between={},
            fixed=moving.fixed,
            cache_bytes=self.cache_bytes,
        )

    def trust(self) -> list[str]:
        """Return what is measured and what is modelled, a sentence each."""
        numbers = ", ".join(str(each.ranks) for each in self.measured)
        return [
            f"Costs were measured on this host ({self.host}: {self.cpu}, {self.cores} cores) at {self.when} UTC, with "
            f"{numbers} ranks; times are modelled from them. Other numbers of ranks are scaled from the nearest one, "
            "as if all ran on this host.",
            "docs/prediction says how far measured and predicted times were apart.",
        ]


def _slower(gather: Gather, times: float) -> Gather:
    """Return the same costs, each so many times as large."""
    return replace(gather, seconds=tuple(tuple(times * each for each in row) for row in gather.seconds))


def name() -> str:
    """Return the name of this host's calibration in the user's cache folder."""
    return f"calibration-{platform.node() or 'host'}.json"


def load() -> Calibration:
    """Return this host's calibration. Raises InputError, with the reason, where there is none that holds here."""
    document, wrong = user_cache.read(name(), FORMAT, VERSION)
    if document is None:
        raise InputError(f"{wrong or 'this host was not calibrated yet'}; run '{HOW}' (some two minutes)")
    try:
        found = msgspec.convert(document, Calibration)
    except msgspec.ValidationError as error:
        wrong = f"ignored, since it is damaged ({error})"
    else:
        wrong = stale(found)
    if wrong:
        raise InputError(f"{user_cache.folder() / name()}: {wrong}; run '{HOW}' again")
    return found


def stale(found: Calibration) -> str:
    """Return why a calibration does not hold here, or nothing."""
    here = {"mgg": __version__, "host": platform.node(), "cpu": cores.processor(), "cores": cores.available()}
    for what, now in here.items():
        was = getattr(found, what)
        if was != now:
            return f"ignored, since it is of {what} {was}, and this is {now}"
    return "" if found.measured else "ignored, since it holds no measurement"


def of_host(measured: list[Measured]) -> Calibration:
    """Return measurements of this host, made now."""
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return Calibration(platform.node(), cores.processor(), cores.available(), when, measured)


def save(measured: list[Measured]) -> Path:
    """Write this host's calibration, whole or not at all; return its file. Raises InputError where it cannot."""
    if not user_cache.write(name(), msgspec.to_builtins(of_host(measured))):
        raise InputError(UNWRITABLE)
    return user_cache.folder() / name()


def check_folder() -> None:
    """Raise InputError where no calibration can be kept."""
    if not user_cache.writable():
        raise InputError(UNWRITABLE)
