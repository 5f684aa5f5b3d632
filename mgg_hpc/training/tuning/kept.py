"""The search's state in checkpoints: the rows of tuning.json as they were after the checkpoint's epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from ...plan.tune import Search

TUNING = "tuning"  # among the facts of a checkpoint


class KeptStep(msgspec.Struct, frozen=True):
    """A measurement of a search. seconds: None for a setting that did not fit."""

    knob: str
    setting: dict[str, int]
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None
    epoch: Annotated[int, msgspec.Meta(ge=0)]


class Kept(msgspec.Struct, frozen=True):
    """A target as it was: see `Target.document`."""

    rows: str
    key: str
    source: Literal["default", "table", "measured"]
    steps: list[KeptStep]
    chosen: dict[str, int]
    gain: float


def of_facts(facts: Mapping[str, Any]) -> dict[str, Kept]:
    """Return what a checkpoint's facts keep of each target, by its key. Raises msgspec.ValidationError."""
    return {each.key: each for each in msgspec.convert(facts.get(TUNING, []), list[Kept])}


def goes_on(search: Search, steps: Sequence[KeptStep]) -> bool:
    """Have a search that begins take the steps of one before; return whether it would have taken the same ones."""
    for step in steps:
        here = search.setting
        if here is None or here != tuple(step.setting.get(knob.name) for knob in search.knobs):
            return False
        search.tell(math.inf if step.seconds is None else step.seconds)
    return True
