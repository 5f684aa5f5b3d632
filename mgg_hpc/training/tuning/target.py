"""Targets of the search: the aggregations over one plan with rows of one format, and the knobs that it may change."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from ...plan.layout import RowFormat
from ...plan.tune import Knob, Search, Setting
from ...plan.workload import Plan
from ...runtime.backends.arguments import BY_WIDTH, Geometry

NAMES = ("ps", "dist", "wpb", "far_ps")
Source = Literal["default", "table", "measured"]  # of a geometry; "table": an earlier run has found it


class TunedStep(msgspec.Struct, frozen=True):
    """A measurement of a search. seconds: None if the setting did not fit into the device's memory."""

    knob: str
    setting: dict[str, int]
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None
    epoch: Annotated[int, msgspec.Meta(ge=0)]


class TunedRow(msgspec.Struct, frozen=True):
    """A target as tuning.json and checkpoints have it. rows: its label. key: digest of `Target.key`."""

    rows: str
    key: str
    source: Source
    steps: list[TunedStep]
    chosen: dict[str, int]
    gain: float


@dataclass
class Target:
    """Aggregations whose geometry is searched: over a plan, of rows of one format.

    layers: number (from 1 on) and direction of each aggregation. key: everything that a measurement depends on. knobs:
    the knobs of NAMES that are changed, and their values. geometry: the present one.
    """

    plan: Plan
    format: RowFormat
    layers: list[tuple[int, str]]
    key: dict[str, Any]
    knobs: list[Knob]
    geometry: Geometry
    source: Source = "default"
    search: Search | None = None
    gain: float = 0.0  # share of the default's time that was saved when it was measured
    epochs: list[int] = field(default_factory=list)  # of each step of the search

    @property
    def label(self) -> str:
        """Name of the target in reports."""
        layers = ", ".join(f"layer {layer} {direction}" for layer, direction in self.layers)
        return f"{layers} ({self.plan.transfer}, rows of {self.format.row_bytes} bytes)"

    @property
    def searching(self) -> bool:
        """Whether some setting is still to be measured."""
        return self.search is not None and self.search.setting is not None

    def at(self, setting: Setting) -> Geometry:
        """Return the geometry for a setting of the knobs."""
        moved = dict(zip((knob.name for knob in self.knobs), setting, strict=True))
        return Geometry(**{**{name: getattr(self.geometry, name) for name in NAMES}, **moved})

    @property
    def start(self) -> Setting:
        """Setting of the present geometry."""
        return tuple(value_of(self.geometry, knob.name) for knob in self.knobs)

    def row(self) -> TunedRow:
        """Return the target's entry of tuning.json."""
        steps = [
            TunedStep(
                step.knob,
                values(self.at(step.setting)),
                step.seconds if math.isfinite(step.seconds) else None,
                epoch,
            )
            for step, epoch in zip(self.search.steps if self.search else [], self.epochs, strict=True)
        ]
        chosen, gain = values(self.geometry), round(self.gain, 4)
        return TunedRow(self.label, digest(self.key), self.source, steps, chosen, gain)

    def accepts(self, chosen: Any) -> bool:
        """Return whether knobs by name have values that the search may choose, and others those of the geometry."""
        allowed = {name: [value] for name, value in values(self.geometry).items()}
        allowed |= {knob.name: list(knob.values) for knob in self.knobs}
        return (
            isinstance(chosen, Mapping)
            and chosen.keys() == allowed.keys()
            and all(type(value) is int and value in allowed[name] for name, value in chosen.items())
        )


def digest(key: Mapping[str, Any]) -> str:
    """Return a short name of a target's key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


def value_of(geometry: Geometry, name: str) -> int:
    """Return the value of a knob of NAMES; far_ps equals ps unless it is set."""
    value = getattr(geometry, name)
    return int(geometry.ps if value is None else value)


def values(geometry: Geometry) -> dict[str, int]:
    """Return the knobs of a geometry by name; far_ps only if it is set."""
    found = {name: getattr(geometry, name) for name in NAMES}
    return {name: value for name, value in found.items() if value is not None}


def knobs_of(geometry: Geometry) -> dict[str, int | str]:
    """Return the knobs of a geometry by name, for reports and summary.json; far_ps only if it is set."""
    return {name: "auto" if value == BY_WIDTH else value for name, value in values(geometry).items()}


def shown(geometry: Geometry) -> str:
    """Return the knobs of a geometry as text."""
    return ", ".join(f"{name} {value}" for name, value in knobs_of(geometry).items())
