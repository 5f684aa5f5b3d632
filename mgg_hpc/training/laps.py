"""How long a run takes to start, part by part."""

from __future__ import annotations

import time


class Laps:
    """Seconds of each part, in the order in which they came."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        """What was done since the last one, or since this was made, is called so."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def skip(self) -> None:
        """Forget the time since the last one."""
        self._since = time.perf_counter()
