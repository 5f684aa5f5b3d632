"""Builds what stands in for a GPU: plain, sanitized and faulty modules of the shim, for accept.py --device shim.

python tests/gpu/acceptance/shim_modules.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[3]))

from builds import SANITIZERS
from shim.build import Build

from gpu.variants import faults


def main(folder: Path) -> int:
    """FOLDER/plain, FOLDER/sanitized, and FOLDER/faulty/TOOL."""
    builds = []
    for name, flags in (("plain", ()), ("sanitized", SANITIZERS)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        builds.append(Build("g++", folder / name, flags))
        builds[-1].whole()
    faults.plant_shim(*builds, folder / "faulty")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(sys.argv[1])))
