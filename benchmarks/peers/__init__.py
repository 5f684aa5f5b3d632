"""Libraries that are measured, a module each; `harness/worker.py` runs one in a process of its own.

Only the modules of this package import mgg_hpc, which the environment of other libraries may not have. A module has
``about()``, which returns the library's versions, and a function for each task, which returns the task's runs by name.
"""

from __future__ import annotations

NAME = ""  # of the library, with a variant after a hyphen: "pyg-csr"
THREADS = 1  # of each library
DEVICE = "cpu"  # or "cuda"
