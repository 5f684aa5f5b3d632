"""The test of the tests: kernels with one fault each, which the shim and the table of cases must find."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import programs
import pytest
from builds import made
from tiers import drawn

from .build import with_other_text

TESTS = Path(__file__).parents[1]

SUMS = ("gpu/sums/aggregate.cuh", ("aggregate_float32",))
ROWS = ("gpu/row_worker.cuh", ("aggregate_float32",))
GATHER = ("gpu/rows/gather.cuh", ("rows",))
EDGES = ("gpu/edges/edges.cuh", ("edges_float32",))
GET = ("gpu/sums/get.cuh", ("get_float32",))
HALO = ("gpu/sums/halo.cuh", ("halo_float32",))
SAMPLE = ("gpu/sampling/sample.cuh", ("sample",))
TRAVERSE = ("gpu/traversal/traverse.cuh", ("traverse",))

PARTIAL = "    store_partial(task.slot, sum);\n"
ARRIVED = "is_last(counters, hub.slots, group, word)"
LAST = "if (before != 1) return false;"
FIRST = "if (before != counter_start(slots, counter)) return false;"
LAST_GROUP_BUT_ONE = "if (before != (counter < hub_groups(slots) ? 1 : 2)) return false;"
PUT = "          device::put_signal_nbi(halo.staging + place, "


@dataclass(frozen=True)
class Fault:
    """One text of a source replaced by another; and the operation of the table that finds it."""

    where: tuple[str, tuple[str, ...]]
    old: str
    new: str
    by: str = "sum"
    before: bool = False  # of the kernels as they are before sm_90
    width: int = 33
    cases: tuple[str, ...] = ()  # where others than the usual ones show it


def without(where: tuple[str, tuple[str, ...]], text: str, *by: str, **more: object) -> Fault:
    """A statement that is missing."""
    return Fault(where, text, "", *by, **more)


FAULTS = {
    "a missing quiet": without(GATHER, "if (asked) device::quiet(device::default_channel);", "gather"),
    "a row without what lies before its first whole line": Fault(
        GATHER, "left >= 0 && left < before ? left : -1", "-1", "gather", width=513
    ),
    "a bulk copy that nobody waits for": without(SUMS, "      await(row);\n"),
    "a copy that nobody waits for": without(SUMS, "      await(row);\n", before=True),
    "a row of the ring that is asked for before all have read it": without(SUMS, "      have_read();\n"),
    "a phase of a barrier that is waited for twice": without(SUMS, "parities ^= 1u << row;"),
    "a barrier that expects too little": Fault(
        SUMS, "expect_bulk(barrier(row), bytes)", "expect_bulk(barrier(row), bytes - 16)"
    ),
    "a missing __syncwarp": Fault(
        ROWS, "    worker.sync();\n    int32_t before = 0;\n", "    int32_t before = 0;\n"
    ),
    "a wrong buffer": Fault(SUMS, "ask(ahead, row);\n    }\n", "ask(ahead, (row + 1) % ring_rows);\n    }\n"),
    "a divergent shuffle": Fault(
        ROWS, "    before = worker.from_first(", "    if (worker.lane) before = worker.from_first("
    ),
    "a divergent shuffle in a reduction": Fault(
        EDGES, "found[u] = worker.over_", "if (u < count || worker.lane) found[u] = worker.over_", "sddmm"
    ),
    "a tail that overruns": without(ROWS, "      if (!has(p)) continue;\n"),
    "a row that ends in its padding": Fault(
        EDGES, "has(i, of_pass) ? from[column(i, of_pass)] : S{};", "from[column(i, of_pass)];", "sddmm"
    ),
    "an unwritten row": Fault(
        ROWS,
        "      finish(call.segments[task.first].destination, sum);",
        "if (call.segments[task.first].destination % 7) finish(call.segments[task.first].destination, sum);",
    ),
    "a signal before its data": Fault(
        ROWS,
        f"{PARTIAL}    if (!{ARRIVED}) return;\n",
        f"    const bool last = {ARRIVED};\n{PARTIAL}    if (!last) return;\n",
    ),
    "a signal of a put before its data": Fault(
        HALO, PUT, f"          device::raise_signal(halo.signal + push.signal, call, push.pe);\n{PUT}", "halo"
    ),
    "a quiet on the wrong channel": Fault(GET, "quiet(channel(stage));", "quiet(channel(stage + 1));", "get"),
    "a stage that nobody waits for": without(GET, "          await_near(stage);\n", "get"),
    "a stage that is asked for before all have read it": without(
        GET, "worker.sync();  // all have read the stage before it is asked for again", "get"
    ),
    "a stage more than the ring has": Fault(
        GET,
        "for (int first = 0; first < get.dist; ++first) ask(first);",
        "for (int first = 0; first <= get.dist; ++first) ask(first % get.dist);",
        "get",
    ),
    "the columns of another pass": Fault(
        GET,
        "static_cast<int32_t>(ahead.number - this->task_of(ahead.number) * this->passes);",
        "this->pass;",
        "get",
        width=513,
    ),
    "a signal of a chunk before its data": Fault(
        HALO,
        "      device::sync_block();\n      if (device::thread() == 0) {\n        device::add(",
        "      if (device::thread() == 0) {\n        device::add(",
        "halo",
    ),
    "a credit that is not returned": without(
        HALO,
        "for (int32_t i = 0; i < halo.owner_count; ++i) raise(halo.credits + halo.me, ended, halo.owners[i]);",
        "halo",
    ),
    "a credit that nobody waits for": without(
        HALO, "if (call > 2) await(halo.credits + push.pe, call - 2);", "halo", cases=("one_way",)
    ),
    "a credit before all blocks have read": Fault(
        HALO,
        "    if (device::add_in_order(&state.left, 1) + 1 - before != blocks) return;\n",
        "    const uint64_t left = device::add_in_order(&state.left, 1) - before;\n"
        "    for (int32_t i = 0; i < halo.owner_count && left == 0; ++i)\n"
        "      raise(halo.credits + halo.me, call, halo.owners[i]);\n"
        "    if (left + 1 != blocks) return;\n",
        "halo",
        cases=("one_way",),
    ),
    "a staging that is let go before it is read": Fault(
        HALO, "if (!halo.holds) give_credits(call);", "give_credits(call);", "edges of a halo"
    ),
    "a number of the call that is off by one": Fault(
        HALO, "(halo.arrivals[mine], exchange.call);", "(halo.arrivals[mine], exchange.call - 1);", "halo"
    ),
    "a staging that is used in every call": Fault(
        HALO, "return (call & 1) * halo.staging_bytes;", "return 0 * halo.staging_bytes;", "halo"
    ),
    "a chunk that is dropped": Fault(
        HALO, "at < halo.push_count; at +=", "at < halo.push_count - 1; at +=", "halo"
    ),
    "a chunk that is taken for one that is there": Fault(
        HALO, "if (segment.chunk > here) return at;", "if (segment.chunk > here + 1) return at;", "halo"
    ),
    "a sum that is deferred without its total": Fault(
        HALO, "load(was.slot, 1, sums.total);", "sums.total.template clear<R>();", "halo", cases=("hub",)
    ),
    "an outbox that is packed again too soon": Fault(
        HALO,
        "if (asked) device::quiet_puts();  // or",
        "if (asked && halo.me < 0) device::quiet_puts();  // or",
        "halo",
        cases=("one_way",),
    ),
    "a lock of the signals that is kept": without(
        HALO, "    device::store_in_block(&arrivals().polling, 0);\n", "halo"
    ),
    "tasks of a batch that are handed out again": without(HALO, "now.next += count, ", "halo"),
    "a hub's parts merged by the first to arrive": Fault(EDGES, LAST, FIRST, "by head"),
    "a hub's parts added by the first to arrive": Fault(ROWS, LAST, FIRST),
    "a hub's groups merged by the last but one to arrive": Fault(EDGES, LAST, LAST_GROUP_BUT_ONE, "by head"),
    "a hub's groups added by the last but one to arrive": Fault(ROWS, LAST, LAST_GROUP_BUT_ONE),
    "a hub's groups merged as if they were parts": Fault(
        EDGES, "hub.first_slot, groups, group_slots, part", "hub.first_slot, groups, 1, part", "by head"
    ),
    "a hub's groups added as if they were parts": Fault(
        ROWS, "merge(hub.first_slot, groups, group_slots)", "merge(hub.first_slot, groups, 1)"
    ),
    "a hub that merges by the counters of another": without(EDGES, " + hub.first_counter", "by head"),
    "a hub that adds by the counters of another": without(ROWS, " + hub.first_counter"),
    "a parent that is the last of those that a warp has found": Fault(
        TRAVERSE, "lane == device::lowest(above)", "lane == device::highest(above)", "traversals"
    ),
    "edges before a list that is read from the start of a line": Fault(
        TRAVERSE,
        "const bool mine = e >= first && e < last;\n    const int32_t value",
        "const bool mine = e < last;\n    const int32_t value",
        "traversals",
    ),
    "a shorter way that the next round does not know of": Fault(
        TRAVERSE, "> bits) call.next[row] = 1, *call.found = 1;", "> bits) *call.found = 1;", "traversals"
    ),
    "a frontier of one lane's sources": Fault(
        TRAVERSE,
        "other = 16; other > 0; other /= 2) {\n    sources +=",
        "other = 0; other > 0; other /= 2) {\n    sources +=",
        "traversals",
    ),
    "a place that is not known to be picked": Fault(SAMPLE, "pick = other;", "return false;", "sampling"),
    "picks that are compared before all have drawn": Fault(
        SAMPLE, "    warp.sync();\n    for (int64_t pick", "    for (int64_t pick", "sampling"
    ),
    "a row that is numbered by the last edge from it": Fault(
        SAMPLE,
        "device::lower(&hop.first[at], static_cast<uint64_t>(number));",
        "hop.first[at] = number;",
        "sampling",
    ),
}

DRAWN = drawn(FAULTS, 6)  # by `make test-long`


# Checks entries of the table.
LOOK = """
import json, sys
import numpy as np
from pathlib import Path
from gpu.pes import table
from gpu.pes.engine import Engine

library, seed, turns, entries = map(json.loads, sys.argv[1:])
engine, rng = Engine.shim(Path(library)), np.random.default_rng(seed)
for entry in turns * entries:
    print(*entry, file=sys.stderr)
    table.check(engine, table.Entry(*entry), rng)
print("unnoticed")
"""
USUAL = {"halo": ("ordinary", "hub", "one_way"), "edges of a halo": ("one_way",)}


def look(library: Path, by: str, seed: list[int], turns: int, width: int = 33, cases: tuple = ()) -> str:
    """What is found in so many turns, in a process of its own: the last line that it prints."""
    cases = cases or USUAL.get(by, ("ordinary", "hub"))
    entries = [(by, "float32", wide, case) for case in cases for wide in (1, width)]
    arguments = map(json.dumps, (str(library), seed, turns, entries))
    done = programs.python("-c", LOOK, *arguments, env=os.environ | {"PYTHONPATH": str(TESTS)})
    assert (done.returncode == 0) == (done.stdout == "unnoticed\n"), done.stderr[-3000:]
    return (done.stdout or done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_of_a_text_that_is_there_once(name):
    fault = FAULTS[name]
    with_other_text(fault.where[0], fault.old, fault.new)  # raises where it is not


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
def test_a_planted_fault_is_found(rng, name):
    fault = FAULTS[name]
    library = made(f"shim: {name}") / "_cuda.so"
    found = look(library, fault.by, list(rng.bytes(4)), 100, fault.width, fault.cases)
    assert found.startswith(
        ("AssertionError", "RuntimeError", "mgg_hpc.traversal.checks.WrongResultError")
    ), found
