"""Targets of the search: the aggregations over one plan, of rows of one format, and the knobs that it may move."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...plan.layout import RowFormat
from ...plan.tune import Knob, Search, Setting
from ...plan.workload import Plan
from ...runtime.backends.arguments import BY_WIDTH, Geometry

NAMES = ("ps", "dist", "wpb", "far_ps")


@dataclass
class Target:
    """Aggregations whose geometry is searched: over a plan, of rows of one format.

    layers: whose forward or backward they are, from 1 on. key: names them in the table of settings that were
    found. knobs: those of NAMES that are moved, and their values. geometry: the present one. source: "default", "table"
    or "measured".
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
        return tuple(value_of(self.geometry, knob.name) for knob in self.knobs)

    def document(self) -> dict[str, Any]:
        """Return the target's part of tuning.json."""
        steps = self.search.steps if self.search else []
        return {
            "rows": self.label,
            "key": digest(self.key),
            "source": self.source,
            "steps": [
                {
                    "knob": step.knob,
                    "setting": values(self.at(step.setting)),
                    "seconds": step.seconds if math.isfinite(step.seconds) else None,  # it did not fit
                    "epoch": epoch,
                }
                for step, epoch in zip(steps, self.epochs, strict=True)
            ],
            "chosen": values(self.geometry),
            "gain": round(self.gain, 4),
        }


def digest(key: Mapping[str, Any]) -> str:
    """Return a short name of a target's key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


def value_of(geometry: Geometry, name: str) -> int:
    """Return the value that a knob of NAMES has; without a far_ps of its own a geometry has ps rows there too."""
    value = getattr(geometry, name)
    return int(geometry.ps if value is None else value)


def values(geometry: Geometry) -> dict[str, int]:
    """Return the knobs of a geometry by name; far_ps only where it is set."""
    found = {name: getattr(geometry, name) for name in NAMES}
    return {name: value for name, value in found.items() if value is not None}


def are_sound(chosen: Any, target: Target) -> bool:
    """Whether these are values that the target's knobs can have, and of other knobs those of its geometry."""
    moved = {knob.name: knob.values for knob in target.knobs}
    allowed = {name: (value,) for name, value in values(target.geometry).items()} | moved
    return (
        isinstance(chosen, Mapping)
        and chosen.keys() == allowed.keys()
        and all(type(value) is int and value in allowed[name] for name, value in chosen.items())
    )


def shown(geometry: Geometry) -> str:
    """Return the knobs of a geometry for reports."""
    said = {name: "auto" if value == BY_WIDTH else value for name, value in values(geometry).items()}
    return ", ".join(f"{name} {value}" for name, value in said.items())
