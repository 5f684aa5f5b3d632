"""Search for the fastest setting of a few knobs by measuring few of them (MGG, OSDI '23, section 5.2).

As in the paper, one knob after the other is moved while time falls, in the order ps, dist, wpb; then ps retreats while
wpb grows, as long as such a setting is among the three fastest. Unlike the paper's, the search begins at the default
instead of (1, 1, 1), moves down as well as up, all knobs by two values at first and then by one, and ends by measuring
the fastest setting and the default alternately: a setting that was lucky once is not kept. It also moves ps against
dist, which leaves a worker as many edges, and spends the points that are left on neighbours of the fastest setting.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

GAIN = 0.01  # share of the time that a setting must save to replace the default, since measurements are noisy
STEP = 0.004  # share of the time that a move must save for the search to go on from there
MOST_POINTS = 12
REPEATS = 2  # measurements of a setting, of which the least counts: other work only adds time
ROUNDS = 3  # of the last comparison
SLOWER = 1.5  # times as long: between such a setting and the fastest so far no faster one is expected
COMPARE, AGAINST, RETREAT, AROUND = "compare", "ps against dist", "retreat", "around"
KEPT = 3  # a retreat goes on while it is among so many fastest settings

Setting = tuple[int, ...]  # a value of each knob
Move = dict[int, int]  # by how many values each knob moves
Measuring = Generator[tuple[str, Setting], float, Setting]  # yields settings to measure, receives their times


@dataclass(frozen=True)
class Knob:
    """A parameter and the values that it can have, in the order in which they are tried."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One measurement of a search.

    knob: name of the knob that was moved; "start" for the default; "ps against dist", "retreat" or "around" if
    several knobs were moved; "compare" in the last comparison. seconds: infinite if the setting did not fit.
    """

    knob: str
    setting: Setting
    seconds: float


class _NoPointsLeftError(Exception):
    """The allowed number of settings was measured."""


@dataclass
class Search:
    """A search that receives the times of its settings one after the other.

    knobs: the knobs to set. start: the default, a value of each knob. allowed: whether a setting can be measured at
    all. most: largest number of settings that are measured, without repeated measurements and those that do not fit.

    After construction, `setting` is the one to be measured next, and `tell` takes its time; it is None once the search
    has ended. `best` is the fastest setting, never slower than the start in the last comparison. Ranks that tell the
    same times measure the same settings.
    """

    knobs: Sequence[Knob]
    start: Setting
    allowed: Callable[[Setting], bool] = lambda setting: True
    most: int = MOST_POINTS
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        for knob, value in zip(self.knobs, self.start, strict=True):
            if value not in knob.values:
                raise ValueError(f"tune: {knob.name} = {value} is none of {knob.values}")
        self._seconds: dict[Setting, float] = {}
        self._compared: dict[Setting, float] = {}  # the least of each in the last comparison
        self._walk = self._measurements()
        self._knob: str
        self.setting: Setting | None
        self._knob, self.setting = next(self._walk)

    def tell(self, seconds: float) -> None:
        """Enter the time of `setting`, and go on to the next one."""
        assert self.setting is not None
        self.steps.append(Step(self._knob, self.setting, seconds))
        known = self._compared if self._knob == COMPARE else self._seconds
        known[self.setting] = min(seconds, known.get(self.setting, seconds))
        try:
            self._knob, self.setting = self._walk.send(seconds)
        except StopIteration:
            self.setting = None

    @property
    def points(self) -> int:
        """Number of settings that were measured, without those that do not fit."""
        return sum(map(math.isfinite, self._seconds.values()))

    @property
    def best(self) -> Setting:
        """The fastest setting so far; once two were compared, the start unless the other one is faster."""
        known = self._compared or self._seconds
        fastest = min(known, key=known.__getitem__, default=self.start)
        lucky = self._compared and known[fastest] >= (1 - GAIN) * known[self.start]
        return self.start if lucky else fastest

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of the start and of `best`, from the last comparison if there was one."""
        known = self._compared or self._seconds
        return known[self.start], known[self.best]

    @property
    def gain(self) -> float:
        """Share of the start's time that `best` saves: 0.1 is a tenth."""
        start, best = self.seconds
        return 1 - best / start if start else 0.0

    def _measurements(self) -> Generator[tuple[str, Setting], float, None]:
        """Yield the settings to measure, each with the knob that was moved; receive their times."""
        for _ in range(REPEATS):
            yield "start", self.start
        names = [knob.name for knob in self.knobs]
        with contextlib.suppress(_NoPointsLeftError):
            at = self.start
            for index, knob in enumerate(self.knobs):
                if len(knob.values) > 4:
                    at = yield from self._while_faster(knob.name, at, [{index: 2}, {index: -2}])
            for index, knob in enumerate(self.knobs):
                moves = [{index: step} for step in self._likely(index, at)]
                at = yield from self._while_faster(knob.name, at, moves)
            if "ps" in names and "dist" in names:
                ps, dist = names.index("ps"), names.index("dist")
                at = yield from self._while_faster(AGAINST, at, [{ps: -1, dist: 1}, {ps: 1, dist: -1}])
            if "ps" in names and "wpb" in names:
                yield from self._retreat(at, {names.index("ps"): -1, names.index("wpb"): 1})
            yield from self._around()
        best = self.best
        for setting in (self.start, best) * ROUNDS if best != self.start else ():
            yield COMPARE, setting

    def _likely(self, index: int, at: Setting) -> tuple[int, ...]:
        """Return the moves of a knob by one value that may save time, from the times two values away.

        If both times are known, it is at most the move towards the bottom of a parabola; else those not towards
        a much slower setting.
        """
        around = [self._moved(at, {index: step}) for step in (-2, 2)]
        here = self._seconds[at]
        below, above = (self._seconds.get(each, 0.0) if each else 0.0 for each in around)
        bend = below + above - 2 * here
        if below and above and 0 < bend < math.inf:
            least = (below - above) / bend  # values from here to the bottom of the parabola
            return (1,) if least >= 0.5 else (-1,) if least <= -0.5 else ()
        return tuple(step for step, known in ((1, above), (-1, below)) if known < SLOWER * here)

    def _while_faster(self, name: str, at: Setting, moves: Sequence[Move]) -> Measuring:
        """Repeat the first of these moves that saves time, while it does; return the setting of least time."""
        for move in moves:
            moved = False
            while (near := self._moved(at, move)) is not None and self.allowed(near):
                if near in self._seconds:
                    break
                yield from self._measured(name, near)
                if self._seconds[near] >= (1 - STEP) * self._seconds[at]:
                    break
                at, moved = near, True
            if moved:  # time falls in one direction only
                break
        return at

    def _retreat(self, at: Setting, move: Move) -> Measuring:
        """Repeat a move while it leads to one of the fastest settings that were measured so far."""
        while (near := self._moved(at, move)) is not None and self.allowed(near):
            if near not in self._seconds:
                yield from self._measured(RETREAT, near)
            if near not in sorted(self._seconds, key=self._seconds.__getitem__)[:KEPT]:
                break
            at = near
        return at

    def _around(self) -> Measuring:
        """Measure neighbours of the fastest setting in one or two knobs, those first that should be fastest."""
        while True:
            at, near = self.best, []
            for steps in itertools.product((0, -1, 1), repeat=len(self.knobs)):
                move = {index: step for index, step in enumerate(steps) if step}
                setting = self._moved(at, move) if len(move) in (1, 2) else None
                if setting is not None and setting not in self._seconds and self.allowed(setting):
                    near.append((self._expected(at, setting), len(move), setting))
            if not near:
                return at
            yield from self._measured(AROUND, min(near)[2])

    def _expected(self, at: Setting, setting: Setting) -> float:
        """Return how much slower than ``at`` a setting should be: the sum of known differences by knob."""
        alone = [(*at[:index], value, *at[index + 1 :]) for index, value in enumerate(setting)]
        return sum(self._seconds[each] - self._seconds[at] for each in alone if each in self._seconds)

    def _moved(self, at: Setting, move: Move) -> Setting | None:
        """Return the setting after a move, or None beyond the ends of a knob."""
        moved = list(at)
        for index, distance in move.items():
            values = self.knobs[index].values
            place = values.index(at[index]) + distance
            if not 0 <= place < len(values):
                return None
            moved[index] = values[place]
        return tuple(moved)

    def _measured(self, name: str, setting: Setting) -> Measuring:
        """Measure a setting, REPEATS times if it fits."""
        if self.points >= self.most:
            raise _NoPointsLeftError
        for _ in range(REPEATS):
            if math.isinf((yield name, setting)):
                break
        return setting
