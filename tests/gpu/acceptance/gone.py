"""Whether processes that tests have started are gone."""

from __future__ import annotations

import time
from pathlib import Path


def ended(file):
    """Whether the process whose number is in the file is gone, or will be in a moment."""
    status = Path("/proc") / file.read_text() / "stat"
    for _ in range(100):
        try:
            if status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
