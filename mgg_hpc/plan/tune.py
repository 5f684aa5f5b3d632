"""Search for the fastest setting of a few knobs by measuring few of them (MGG, OSDI '23, section 5.2).

As in the paper, one knob after the other is moved while time falls, in the order ps, dist, wpb; then ps retreats while
wpb grows, as long as such a setting is among the three fastest. Unlike the paper's, the search begins at the
default instead of (1, 1, 1), moves down as well as up, all knobs by two values at first and then by one, and ends with
a comparison of the fastest setting with the default in turns: a setting that was lucky once is not kept. It also moves
ps against dist, which leaves a worker as many edges, and spends the points that are left on neighbours of the fastest
setting.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

GAIN = 0.01  # of the time: what a setting must save to be kept in place of the default, since measurements are noisy
STEP = 0.004  # of the time: what a move must save to go on from there
MOST_POINTS = 12
REPEATS = 2  # measurements of a setting, of which the least counts: other work only adds time
ROUNDS = 3  # of the last comparison
SLOWER = 1.5  # times as long: between that and the fastest so far no faster setting is expected
COMPARE, AGAINST, RETREAT, AROUND = "compare", "ps against dist", "retreat", "around"
KEPT = 3  # a retreat goes on while it is among so many fastest settings

Setting = tuple[int, ...]  # a value of each knob


@dataclass(frozen=True)
class Knob:
    """A parameter and the values that it can have, in the order in which they are tried."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A measurement.

    knob: the one that was moved; "start"; "ps against dist", "retreat" or "around" where several were; "compare" for a
    repeated one. seconds: infinite for a setting that turned out not to fit.
    """

    knob: str
    setting: Setting
    seconds: float


class _NoPointsLeftError(Exception):
    """As many settings were measured as may be."""


@dataclass
class Search:
    """A search that is told what its settings take, one after the other.

    knobs: the search's. start: the default, a value of each knob. allowed: whether a setting can be measured at all.
    most: number of settings that are measured at most, without repeated measurements and those that do not fit.

    After construction, `setting` is the one to be measured next, and `tell` takes its time; it is None once the search
    has ended. `best` is the fastest setting, never slower than the start in the last comparison. All ranks that tell
    the same times go the same way.
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
        self._knob = ""
        self.setting: Setting | None = None
        self._advance(None)

    def tell(self, seconds: float) -> None:
        """Enter the time of `setting`, and go on to the next one."""
        assert self.setting is not None
        self.steps.append(Step(self._knob, self.setting, seconds))
        if self._knob != COMPARE:
            self._seconds[self.setting] = min(seconds, self._seconds.get(self.setting, seconds))
        self._advance(seconds)

    @property
    def points(self) -> int:
        """Number of settings that were measured, without those that do not fit."""
        return sum(map(math.isfinite, self._seconds.values()))

    @property
    def best(self) -> Setting:
        """The fastest setting so far; once two were compared, the start unless the other one is faster."""
        known = self._compared or self._seconds
        fastest = min(known, key=known.__getitem__, default=self.start)
        lucky = self._compared and not self._faster(known[fastest], known[self.start])
        return self.start if lucky else fastest

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of the start and of `best`, from the last comparison where there was one."""
        known = self._compared or self._seconds
        return known[self.start], known[self.best]

    @property
    def gain(self) -> float:
        """Share of the start's time that `best` saves: 0.1 is a tenth."""
        start, best = self.seconds
        return 1 - best / start if start else 0.0

    def _advance(self, seconds: float | None) -> None:
        try:
            self._knob, self.setting = next(self._walk) if seconds is None else self._walk.send(seconds)
        except StopIteration:
            self._knob, self.setting = "", None

    def _measurements(self) -> Generator[tuple[str, Setting], float, None]:
        """Yield the settings to measure, each with the knob that was moved; receive their times."""
        for _ in range(REPEATS):
            yield "start", self.start
        try:
            at = self.start
            for along in (self._coarsely, self._finely):
                for index in range(len(self.knobs)):
                    at = yield from along(index, at)
            at = yield from self._against(at)
            yield from self._retreat(at)
            yield from self._around()
        except _NoPointsLeftError:
            pass
        best = self.best
        if best == self.start:
            return
        for _ in range(ROUNDS):
            for setting in (self.start, best):
                seconds = yield COMPARE, setting
                self._compared[setting] = min(seconds, self._compared.get(setting, seconds))

    def _coarsely(self, index: int, at: Setting) -> Generator[tuple[str, Setting], float, Setting]:
        """Move a knob of many values by two of them while time falls; return where it is least."""
        if len(self.knobs[index].values) <= 4:
            return at
        return (yield from self._while_faster(self.knobs[index].name, at, [{index: 2}, {index: -2}]))

    def _finely(self, index: int, at: Setting) -> Generator[tuple[str, Setting], float, Setting]:
        """Move a knob by one value while time falls; return where it is least."""
        moves = [{index: step} for step in self._likely(index, at)]
        return (yield from self._while_faster(self.knobs[index].name, at, moves))

    def _likely(self, index: int, at: Setting) -> tuple[int, ...]:
        """Return the steps of one value that may be faster, by what is known of two values on.

        By a parabola, where it is known both ways; else not towards what is much slower.
        """
        around = [self._moved(at, {index: step}) for step in (-2, 2)]
        here = self._seconds[at]
        below, above = (self._seconds.get(each, 0.0) if each else 0.0 for each in around)
        bend = below + above - 2 * here
        if below and above and 0 < bend < math.inf:
            least = (below - above) / bend  # values from here to the bottom of the parabola
            return (1,) if least >= 0.5 else (-1,) if least <= -0.5 else ()
        return tuple(step for step, known in ((1, above), (-1, below)) if known < SLOWER * here)

    def _against(self, at: Setting) -> Generator[tuple[str, Setting], float, Setting]:
        """Lower ps and raise dist, or the other way round, while time falls; return where it is least."""
        names = [knob.name for knob in self.knobs]
        if "ps" not in names or "dist" not in names:
            return at
        ps, dist = names.index("ps"), names.index("dist")
        return (yield from self._while_faster(AGAINST, at, [{ps: -1, dist: 1}, {ps: 1, dist: -1}]))

    def _while_faster(
        self, name: str, at: Setting, moves: Sequence[dict[int, int]]
    ) -> Generator[tuple[str, Setting], float, Setting]:
        """Repeat the first of these moves that saves time while it does; return where time is least."""
        for move in moves:
            moved = False
            while (near := self._moved(at, move)) is not None and self.allowed(near):
                if near in self._seconds:
                    break
                if (yield from self._measured(name, near)) >= (1 - STEP) * self._seconds[at]:
                    break
                at, moved = near, True
            if moved:  # time falls one way only
                break
        return at

    def _retreat(self, at: Setting) -> Generator[tuple[str, Setting], float, None]:
        """Lower ps and raise wpb together, while that is among the fastest settings."""
        names = [knob.name for knob in self.knobs]
        if "ps" not in names or "wpb" not in names:
            return
        down, up = names.index("ps"), names.index("wpb")
        while (near := self._moved(at, {down: -1, up: 1})) is not None and self.allowed(near):
            if near not in self._seconds:
                yield from self._measured(RETREAT, near)
            if near not in sorted(self._seconds, key=self._seconds.__getitem__)[:KEPT]:
                return
            at = near

    def _around(self) -> Generator[tuple[str, Setting], float, None]:
        """Measure neighbours of the fastest setting in one or two knobs, those first that should take the least."""
        while True:
            at, near = self.best, []
            for steps in itertools.product((0, -1, 1), repeat=len(self.knobs)):
                moves = {index: step for index, step in enumerate(steps) if step}
                setting = self._moved(at, moves) if len(moves) in (1, 2) else None
                if setting is not None and setting not in self._seconds and self.allowed(setting):
                    near.append((self._expected(at, setting), len(moves), setting))
            if not near:
                return
            yield from self._measured(AROUND, min(near)[2])

    def _expected(self, at: Setting, setting: Setting) -> float:
        """Return the seconds that a setting should take more than ``at``: what each knob adds alone, where known."""
        alone = [(*at[:index], value, *at[index + 1 :]) for index, value in enumerate(setting)]
        return sum(self._seconds[each] - self._seconds[at] for each in alone if each in self._seconds)

    def _moved(self, at: Setting, by: dict[int, int]) -> Setting | None:
        """Return the setting so many values further on in some knobs, or None beyond their ends."""
        moved = list(at)
        for index, distance in by.items():
            values = self.knobs[index].values
            place = values.index(at[index]) + distance
            if not 0 <= place < len(values):
                return None
            moved[index] = values[place]
        return tuple(moved)

    def _measured(self, name: str, setting: Setting) -> Generator[tuple[str, Setting], float, float]:
        if self.points >= self.most:
            raise _NoPointsLeftError
        for _ in range(REPEATS):
            if math.isinf((yield name, setting)):  # it will not fit the next time either
                break
        return self._seconds[setting]

    @staticmethod
    def _faster(seconds: float, than: float) -> bool:
        return seconds < (1 - GAIN) * than


def search(
    knobs: Sequence[Knob],
    measure: Callable[[Setting], float],
    start: Setting,
    allowed: Callable[[Setting], bool] = lambda setting: True,
    most: int = MOST_POINTS,
) -> Search:
    """Search with a function that measures a setting's seconds; return the search, which has ended."""
    going = Search(knobs, start, allowed, most)
    while going.setting is not None:
        going.tell(measure(going.setting))
    return going
