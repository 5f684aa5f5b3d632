"""A rank's memory: what is measured, and that freed arrays go back to the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Large arrays freed between small ones that stay: the pieces that a heap cannot give back.
CHURN = """
import sys
import numpy as np
from pathlib import Path
from mgg_hpc.training import memory

def resident():
    (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS")]
    return int(line.split()[1]) * 1024

if sys.argv[1] == "yes":
    memory.return_freed_memory()
np.ones(6 << 18)  # its end raises glibc's threshold to 12 MiB
before = resident()
large, kept = [], []
for _ in range(20):
    large.append(np.ones(1 << 20))
    kept.append([bytes(40_000) for _ in range(4)])
del large
print(resident() - before)
"""


def churned(asked: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", CHURN, asked],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return int(done.stdout)


def test_freed_arrays_are_given_back():
    assert churned("no") > 100e6  # or this test shows nothing
    assert churned("yes") < 20e6


# In a process of its own, whose memory is not what other tests have left.
PEAK = """
import mmap
import numpy as np
from pathlib import Path
from mgg_hpc.training import memory

def status():
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}

def near(found, wanted):
    assert abs(found - wanted) <= 4 << 20, (found, wanted)

ballast = np.ones(status()["VmHWM"] // 8)  # the high-water mark is now
peak = memory.Peak()
near(peak.read(1 << 40), status()["VmHWM"])
shared = mmap.mmap(-1, 64 << 20)  # shared and anonymous, as windows are
shared.write(b"1" * len(shared))
after = status()["VmHWM"]
near(peak.read(0), after - (64 << 20))
near(peak.read(16 << 20), after - (48 << 20))
near(peak.read(1 << 40), after)
print("as it should be")
"""


def test_a_peak_counts_own_shared_pages_and_not_those_of_peers():
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "as it should be", done.stderr
