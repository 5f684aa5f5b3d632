"""Names of the columns of edge lists: which words name columns, and whether these are in the order that is read."""

from __future__ import annotations

import re
from itertools import combinations

from ...errors import InputError, shown
from .dialect import Dialect, Words, attempt, check_header

# Words that name columns, in small letters without marks between them; the last ones of sources and targets say little
# of the direction.
SOURCES = (
    "source|src|from|von",
    "sender|origin|orig|subject|subj|follower|citing",
    "head|parent|ego|tf|regulator",
)
TARGETS = (
    "target|tgt|to|dst|destination|dest|nach",
    "receiver|recipient|object|obj|followee|cited",
    "tail|child|alter",
)
OTHERS = (
    "user|customer|author|actor|person|left|start|friend|item|product|movie|paper|entity|group|right|end|"
    "node|id|name|vertex|gene|protein|drug|disease|page|account|weight|label|caller|callee|buyer|seller|business"
)
ENDING = "s?(node|vertex|id|name|key|code|number|label|index)*"
SOURCE, TARGET = (re.compile(f"({words[0]}){ENDING}") for words in (SOURCES, TARGETS))
END = re.compile(f"({'|'.join((*SOURCES, *TARGETS))}){ENDING}")  # of an edge
HEADER = re.compile(f"({'|'.join((*SOURCES, *TARGETS, OTHERS))}){ENDING}|(id|node|vertex)[12]")
LETTERS = (("u", "v"), ("i", "j"))
SIDES = (("1", "2"), ("A", "B"), ("a", "b"))
SIDE = re.compile(r"(.*[A-Za-z])([ _.-]*)([12]|(?<=[a-z _.-])[AB]|(?<=[ _.-])[ab])")
KEY = re.compile(".+[ _.-](id|key|name|code|KEY|NAME|CODE)|.+I[Dd]")
WEIGHT = re.compile("(.*weights?)|(.*values?)|w|wt|wgt|val")
NO_WEIGHT = (
    "ids?|labels?|names?|types?|kind|class|category|predicate|property|rel|relations?|relationship|"
    "times?|timestamps?|unixtime|ts|dates?|datetime|years?"
)
HINT = "--header if it names the columns, --no-header if it is an edge"


def _letters(word: str) -> str:
    return re.sub("[^a-z0-9]", "", word.lower())


def _parts(word: str) -> Words:
    """Return the words of a name such as src_ip or FromNodeId, in small letters."""
    return [part.lower() for part in re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", word)] or [""]


def _have_roles(first: str, second: str, *, ordered: bool = False) -> bool:
    """Return whether two names are of a source and a destination: src_ip, dst_ip. ordered: without heads and tails."""
    a, b = _parts(first), _parts(second)
    sources, targets = ("|".join(words[: 2 if ordered else 3]) for words in (SOURCES, TARGETS))
    if any(re.fullmatch(sources, a[at]) and re.fullmatch(targets, b[at]) for at in (0, -1)):
        return True
    begin, end = re.match(sources, _letters(first)), re.match(targets, _letters(second))
    # Such as srcip, dstip.
    return bool(begin and end and _letters(first)[begin.end() :] == _letters(second)[end.end() :])


def _sides(first: str, second: str) -> str:
    """Return the stem of two names that differ by their end, as V1 and V2, gene_a and gene_b; "" for others."""
    a, b = SIDE.fullmatch(first), SIDE.fullmatch(second)
    alike = a and b and a[1] == b[1] and a[2] == b[2] and (a[3], b[3]) in SIDES
    return a[1] + a[2] if a and alike else ""


def _are_pair(first: str, second: str) -> bool:
    """Return whether two names of columns are a pair for the ends of an edge, as V1 and V2 or src_ip and dst_ip."""
    keys = first != second and bool(KEY.fullmatch(first) and KEY.fullmatch(second))
    letters = (first.lower(), second.lower()) in LETTERS
    return keys or letters or _have_roles(first, second) or bool(_sides(first, second))


def name_columns(words: Words) -> bool:
    """Return whether the first two of some words are names of columns by what they mean."""
    ends = [_letters(word) for word in words[:2]]
    return len(ends) == 2 and (
        (ends[0] != ends[1] and all(map(HEADER.fullmatch, ends))) or _are_pair(*words[:2])
    )


def is_header(dialect: Dialect, texts: list[str]) -> bool:
    """Return whether the first of some lines seems to name columns: by its words, or since numbers follow it."""
    first, *rest = ([*map(str, attempt(dialect, text))][:2] for text in texts)
    words_above = not any(map(dialect.is_number, first))
    if words_above and rest and all(dialect.is_number(word) for row in rest for word in row):
        return True
    stem = _sides(*first) if len(first) == 2 else ""
    alike = re.compile(re.escape(stem) + "([0-9]+|[A-Za-z])")  # further nodes of this kind: a1, a2 above a3
    return name_columns(first) and not (stem and any(alike.fullmatch(word) for row in rest for word in row))


def check_names(where: str, words: Words) -> str:
    """Return a line that tells by which name a third column is the weight, "" if it is a weight's.

    Raises InputError for names that are not of a source, a destination and a weight, in order.
    """
    check_header(where, words)
    listed, ends = ", ".join(map(shown, words)), [*map(_letters, words)]
    wrong = (
        TARGET.fullmatch(ends[0]) or any(map(SOURCE.fullmatch, ends[1:])) or any(map(END.fullmatch, ends[2:]))
    )
    wrong = wrong or any(re.fullmatch("(edge)?weights?", end) for end in ends[:2])
    if len(words) > 1 and not wrong and not _are_pair(*words[:2]):
        wrong = _have_roles(words[1], words[0], ordered=True) or any(
            _are_pair(words[i], words[j]) if i < 2 else _have_roles(words[i], words[j])
            for i, j in combinations(range(min(len(words), 6)), 2)
        )
    if wrong:
        raise InputError(
            f"{where}: the columns are {listed}; expected source, destination, weight, time, in order"
        )
    if len(words) < 3 or WEIGHT.fullmatch(ends[2]):
        return ""
    if any(map(WEIGHT.fullmatch, ends[3:])) or re.fullmatch(
        f"(edge|link)?({NO_WEIGHT})", _parts(words[2])[-1]
    ):
        raise InputError(
            f"{where}: the columns are {listed}, and the third one is read as the weight; keep source, destination and "
            "weight only"
        )
    return f"{where}: column 3, {shown(words[2])}, is the weight"
