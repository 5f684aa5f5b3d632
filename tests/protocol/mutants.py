"""Mutants of the model of the halo's signals (halo.pml), made from its text by rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("halo.pml")
# What takes the place of what, one place at a time: bounds and numbers off by one, conditions that are the other way
# round, and the wrong PE's memory.
RULES = (
    (r"(?<![<>=!-])>=", (">",)),
    (r"(?<![<>=!-])<(?![<=])", ("<=",)),
    (r"(?<=[\w)\]]) <= (?=\d)", (" < ",)),
    (r"==", ("!=", ">=")),
    (r"!=", ("==",)),
    (r"\|\|", ("&&",)),
    (r"&&", ("||",)),
    (r"(?<= )!(?=[\w(])", ("",)),
    (r"\bcall - 2\b", ("call - 1", "call - 3")),
    (r"\bcall - 1\b", ("call", "call - 2")),
    (r"\bcall <= 2\b", ("call <= 1", "call <= 3", "false")),
    (r"(?<![=><]=)(?<!byte) call(?=[;, \n]|$)", (" call - 1", " call + 1")),
    (r">= call\b(?! -)", (">= call - 1", ">= call + 1")),
    (r"== BLOCKS\b", ("== BLOCKS - 1", "== BLOCKS + 1")),
    (r"\bPES - 1\b", ("PES - 2",)),
    (r"\bPES(?= ->| &&)", ("PES - 1",)),
    (r"\bCALLS\b", ("CALLS - 1",)),
    (r"\(call\) & 1\b", ("(call) & 0", "(call) >> 1")),
    (r"\bPAIR\(me, peer\)", ("PAIR(peer, me)", "PAIR(me, me)")),
    (r"\bPAIR\(peer, me\)", ("PAIR(me, peer)",)),
    (r"\bSENDS\(me, peer\)", ("SENDS(peer, me)", "true")),
    (r"\bSENDS\(peer, me\)", ("SENDS(me, peer)", "true")),
    (r"\bIS_FAR\(me, peer\)", ("true", "false")),
    (r"(?<!peer)\+\+", ("--",)),
    (r"(?<=:: )(?!atomic|else)[^{}]*(?= ->)", ("true", "false")),
    (r"(?<=atomic { )[^{}]*(?= ->)", ("true", "false")),
    (r"\bpeer\+\+", ("peer = peer + 2",)),
    (r"\bnumber == 0", ("number >= 0",)),
    (r"\[me\]", ("[0]", "[PES - 1 - me]")),
    (r"(?<=under_way\[at\] )!= 0", ("> 1",)),
    (r"= 0(?=[;\n ])", ("= 1",)),
)
STATEMENT = re.compile(
    r"(?!byte )[ (]*[\w\[\]* +(),]+(= [^=].*|\+\+)[;,]?|LANDED\(.*\);.*|\(call <= 2.*;|calls\[me\] == .*;|\w+\(\)[;,]?"
)
PART = re.compile(r"(?:inline|proctype) (\w+)\(")


@dataclass(frozen=True)
class Mutant:
    """A model with one change. `name`: the part of the model, the line, and what was done to it."""

    name: str
    text: str


def without_elements(text: str) -> str:
    """The model as it is where no WITHOUT_... is defined; the lines of other conditions stay."""
    lines: list[str] = []
    stack: list[bool | None] = []  # whether this branch stays, of a condition on WITHOUT_...; None of others
    for line in text.splitlines():
        word = line.split(" ")[0]
        if word in ("#ifdef", "#ifndef", "#if"):
            ours = "WITHOUT_" in line
            stack.append(("!" in line or word == "#ifndef") if ours else None)
            if ours:
                continue
        elif word in ("#else", "#elif") and stack[-1] is not None:
            stack[-1] = not stack[-1] and (word == "#else" or "WITHOUT_" not in line)
            continue
        elif word == "#endif" and stack.pop() is not None:
            continue
        if all(stays is not False for stays in stack):
            lines.append(line)
    return "\n".join(lines) + "\n"


def mutants(text: str) -> list[Mutant]:
    """Each rule at each place, each statement left out, and each statement behind the next one.

    What the checker asserts stays as it is, and so do comments, the worlds' conditions and `init`.
    """
    lines = without_elements(text).splitlines()
    found: dict[str, Mutant] = {}
    names = set[str]()

    def add(at: int, what: str, changed: list[str], more: int = 1) -> None:
        new = "\n".join((*lines[:at], *changed, *lines[at + more :])) + "\n"
        if new in found:
            return
        where = next((part[1] for before in lines[at::-1] if (part := PART.match(before))), "define")
        name = f"{where}: {' '.join(lines[at].split())} [{what}]"
        while name in names:
            name += " again"
        names.add(name)
        found[new] = Mutant(name, new)

    first = lines.index("proctype network(byte at) {")
    last = lines.index("init {")
    inside = False
    for at, line in enumerate(lines[:last]):
        inside = "/*" in line or (inside and "*/" not in lines[at - 1])
        code = line.split("/*")[0].rstrip() if "/*" in line else line
        defines = line.startswith(("#define THERE", "#define STAGING", "#define LANDED"))
        if (
            (inside and not code)
            or "assert" in line
            or not (at >= first or defines)
            or line.startswith("#if")
        ):
            continue
        for pattern, instead in RULES:
            for match in re.finditer(pattern, code):
                for new in instead:
                    changed = code[: match.start()] + new + code[match.end() :]
                    add(
                        at,
                        f"{match[0].strip()} at {match.start() - len(line) + len(line.lstrip())} -> {new.strip()}",
                        [changed],
                    )
        if at < first or not STATEMENT.fullmatch(code.strip()):
            continue
        spaces = line[: len(line) - len(line.lstrip())]
        add(at, "left out", [spaces + ("skip" if not code.rstrip().endswith((";", ",")) else "skip;")])
        after = lines[at + 1]
        if STATEMENT.fullmatch(after.strip()) and "assert" not in after:
            one, two = code.strip().rstrip(";"), after.strip().rstrip(";")
            add(
                at,
                "moved behind the next",
                [f"{spaces}{two};", f"{spaces}{one}" + ";" * after.strip().endswith(";")],
                2,
            )
    return list(found.values())


WAIT = "push_all: (call <= 2 || credit[PAIR(me, peer)] >= call - 2);"
BOUND = "peer is counted up to PES, and never beyond"
GIVE = "give_credit: :: peer != me && SENDS(peer, me) -> credit[PAIR(peer, me)] = call"
ATOMIC = "two statements of one atomic step, neither of which reads what the other writes"
# Mutants that the checker finds nothing wrong with, each with the reason.
HARMLESS = {
    f"{WAIT} [>= at 37 -> >]": "the wait is for the credit of the call before: longer than it must be, but it ends",
    f"{WAIT} [call - 2 at 40 -> call - 1]": "the same longer wait",
    f"{WAIT} [<= at 5 -> <]": "call 2 waits for a credit of 0 then, which is there from the start",
    f"{WAIT} [call <= 2 at 1 -> call <= 1]": "the same",
    f"{WAIT} [call <= 2 at 1 -> false]": "calls 1 and 2 wait for credits of -1 and 0",
    f"{GIVE} [call at 60 -> call - 1]": "the credit comes a call later: a longer wait, which ends",
    f"{GIVE} [&& at 14 -> ||]": "it is also given to PEs that send nothing, and so never read it",
    f"{GIVE} [SENDS(peer, me) at 17 -> true]": "the same",
    f"{GIVE} [peer != me && SENDS(peer, me) at 3 -> true]": "the same",
    "push_all: :: peer == PES -> break [== at 8 -> >=]": BOUND,
    "push_all: :: peer == PES -> break [== at 8 -> >=] again": BOUND,
    "sum_all: :: peer == PES -> break [== at 8 -> >=]": BOUND,
    "block: :: gone[me] == BLOCKS -> [== at 12 -> >=]": "each block leaves once a call, so there are never more",
    "block: calls[me] == call - 1; /* kernels of a stream follow each other */ [== at 10 -> >=]": "a call ends "
    "with all of its blocks",
    "push_all: LANDED(me, peer); /* a queue of one put will do */ [left out]": "quiet_puts of the call before has "
    "waited for that put",
    "push_all: :: atomic { peer < PES && (LANDED(me, peer) || !IS_FAR(me, peer)) -> peer++ } "
    "[IS_FAR(me, peer) at 48 -> true]": "stores through pointers landed before their signal",
    "push_all: under_way[PAIR(me, peer)] = call; [moved behind the next]": ATOMIC,
    "push_all: under_way[PAIR(me, peer)] = call; [moved behind the next] again": ATOMIC,
    "block: summed = 0; [moved behind the next]": ATOMIC,
    "block: give_credit(); [moved behind the next]": ATOMIC,
    "block: gone[me] = 0; [moved behind the next]": ATOMIC,
    "sum_all: :: atomic { peer < PES && peer != me && SENDS(peer, me) && THERE(PAIR(peer, me)) -> [< at 17 -> <=]": ""
    "no PE beyond the last sends in these worlds",
    "sum_all: :: atomic { peer < PES && peer != me && SENDS(peer, me) && THERE(PAIR(peer, me)) -> "
    "[SENDS(peer, me) at 40 -> true]": "a PE that sends nothing never signals",
}
