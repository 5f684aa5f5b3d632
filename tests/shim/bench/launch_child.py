"""What `mgg bench profile` runs under ncu, with the shim in place of a GPU: python launch_child.py MODULE REQUEST.

The grids of what was launched between marks go beside the file of the request, a JSON list.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from gpu.pes.engine import Engine
from gpu.pes.shim_device import shim_device

from mgg_hpc.tools.bench.harness.gpu import Device
from mgg_hpc.tools.bench.profile import launches

engine = Engine.shim(Path(sys.argv[1]))
grids: list[list[int]] = []


@contextlib.contextmanager
def marks():
    """Counts a launch."""
    engine.module.shim_counts()
    yield
    counts = engine.module.shim_counts()
    grids.append([counts["blocks"], counts["threads"]])


device = shim_device(engine, 1)
Device.current = lambda: device
launches.cuda_marks = marks
code = launches.main(sys.argv[2])
Path(json.loads(sys.argv[2])["file"] + ".grids").write_text(json.dumps(grids))
sys.exit(code)
