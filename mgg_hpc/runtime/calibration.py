"""The calibration of this host: measured costs of sums, products and transfers, kept in the user's cache folder.

`mgg doctor --calibrate` measures each number of ranks by that many processes at once, since they share caches, memory
and cores (`tools/calibrate.py`): the cost model (`plan.cost_model`) takes the costs of a rank among so many.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from .. import __version__
from ..data import user_cache
from ..errors import InputError
from ..plan.cost_model import System
from . import cores

FORMAT, VERSION = "mgg-calibration", 3
HOW = "mgg doctor --calibrate"
UNWRITABLE = (
    "no calibration can be kept: the user's cache folder is not writable; set XDG_CACHE_HOME to another"
)


@dataclass(frozen=True)
class Calibration:
    """The measurements of a host.

    cores: number that its processes may use. when: time in UTC. measured: one System for each number of ranks.
    """

    host: str
    cpu: str
    cores: int
    when: str
    measured: list[System]
    format: str = FORMAT
    version: int = VERSION
    mgg: str = __version__

    def system(self, ranks: int) -> System:
        """Return the costs for a number of ranks: as measured, or scaled from the nearest number that was measured.

        Raises InputError for several ranks where one alone was measured.
        """
        usable = [each for each in self.measured if ranks == 1 or each.ranks_a_node > 1]
        if not usable:
            raise InputError(f"this host was calibrated with one rank alone; run '{HOW} --ranks 1,2,4'")
        near = min(usable, key=lambda each: abs(np.log(each.ranks_a_node / ranks)))
        # The work of each rank takes longer the more ranks share this machine.
        return replace(near.slower(ranks / near.ranks_a_node), ranks_a_node=ranks)

    @property
    def basis(self) -> str:
        """Sentences that say which times are measured and which are modelled."""
        numbers = ", ".join(str(each.ranks_a_node) for each in self.measured)
        return (
            f"Times are modelled from costs that were measured on this host ({self.host}: {self.cpu}, {self.cores} "
            f"cores) at {self.when} UTC, with {numbers} ranks; those of other numbers of ranks are scaled from the "
            "nearest one, as if all ran on this host. Evaluation, and the sum of gradients over ranks, are left out."
        )


def name() -> str:
    """Return the name of this host's calibration in the user's cache folder."""
    return f"calibration-{platform.node() or 'host'}.json"


def load() -> Calibration:
    """Return this host's calibration. Raises InputError, with the reason, if there is no valid one."""
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
    """Return the reason why a calibration is not valid on this host, or ""."""
    here = {"mgg": __version__, "host": platform.node(), "cpu": cores.processor(), "cores": cores.available()}
    for what, now in here.items():
        was = getattr(found, what)
        if was != now:
            return f"ignored, since it is of {what} {was}, and this is {now}"
    return "" if found.measured else "ignored, since it holds no measurement"


def save(measured: list[System]) -> Path:
    """Write this host's calibration, whole or not at all; return its file. Raises InputError where it cannot."""
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    made = Calibration(platform.node(), cores.processor(), cores.available(), when, measured)
    if not user_cache.write(name(), msgspec.to_builtins(made)):
        raise InputError(UNWRITABLE)
    return user_cache.folder() / name()


def check_folder() -> None:
    """Raise InputError where no calibration can be kept."""
    if not user_cache.writable():
        raise InputError(UNWRITABLE)
