"""The options of `mgg partition`: what is asked for, a partition or a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from .compare import process_compare
from .process import process_partition

OF_COMPARISON = ("methods", "widths", "plot", "as_json")


def process_verb(graph: Path, options: Mapping[str, Any]) -> None:
    """Do what the options of the command line ask for, by name, None or False where they are not given."""
    facts = {name: options[name] for name in ("parts", "memory")}
    if options["compare"]:
        if options["method"] != "edges":
            raise InputError(f"--compare takes --methods edges,{options['method']}, not --method")
        facts |= {name: options[name] for name in OF_COMPARISON}
        process_compare(graph, renumbering=options["order"], assignment=options["assignment"], **facts)
        return
    for name in OF_COMPARISON:
        if options[name]:
            raise InputError(f"--{name.removeprefix('as_')} goes with --compare")
    process_partition(
        graph,
        method=options["method"],
        renumbering=options["order"],
        assignment=options["assignment"],
        **facts,
    )
