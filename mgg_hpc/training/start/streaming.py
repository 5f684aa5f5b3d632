"""Jobs whose graph is streamed: plan.memory and plan.scratch."""

from __future__ import annotations

from pathlib import Path

from ... import sizes
from ...config import Settings
from ...errors import InputError
from ...nn.streaming.graph import Streaming


def streaming_of(settings: Settings) -> Streaming | None:
    """Return how a job streams its graph; None where rows stay in memory.

    Raises InputError for settings that do not go with it, and a scratch folder that is none.
    """
    plan = settings.plan
    memory = plan.memory if isinstance(plan.memory, int) else sizes.parse(plan.memory)
    if not memory:
        if plan.scratch:
            raise InputError(
                'plan.scratch is for graphs that are streamed: set plan.memory, such as "2G", or leave it out'
            )
        return None
    _check(settings)
    if plan.scratch and not Path(plan.scratch).is_dir():
        raise InputError(f"plan.scratch: {plan.scratch} is not a folder; name one with room for all rows")
    return Streaming(memory, folder=plan.scratch or None)


def _check(settings: Settings) -> None:
    """Raise InputError for what needs all rows, or edges, at once."""
    model, train, plan = settings.model, settings.train, settings.plan
    found = (
        (model.name == "gat", 'model.name = "gat", whose softmax', '"gcn", "gin" or "sage"'),
        (model.norm == "batch", 'model.norm = "batch", which', '"layer" or "none"'),
        (model.jumping != "none", f'model.jumping = "{model.jumping}", which', '"none"'),
        (model.input == "learned", 'model.input = "learned", which', '"features" or "degree"'),
    )
    for wrong, what, right in found:
        if wrong:
            raise InputError(f"plan.memory does not go with {what} needs all rows at once; take {right}")
    others = (
        (train.mode == "sampled", 'train.mode = "sampled"', "batches hold few rows already"),
        (bool(train.recompute), "train.recompute", "what the backward needs leaves memory already"),
        (plan.transfer != "auto", "plan.transfer", "rows come from their stores"),
        (plan.tune == "full", 'plan.tune = "full"', "there is nothing to search for"),
    )
    for wrong, what, why in others:
        if wrong:
            raise InputError(f"plan.memory does not go with {what}: {why}; leave one of them out")
