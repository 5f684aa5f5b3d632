"""docs/tutorials: every page's commands and programs run, and print what the page shows."""

from __future__ import annotations

import re

import pages
import pytest
from tiers import long_except

FOLDER = pages.ROOT / "docs" / "tutorials"
PAGES = {path.stem: path for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"}
QUICK = "traversal"


@pytest.mark.slow
@pytest.mark.parametrize("name", long_except(PAGES, QUICK))
def test_what_a_page_says_can_be_done_and_shows_what_it_shows(name, tmp_path):
    pages.follow(PAGES[name], tmp_path)


def test_the_index_lists_every_page():
    listed = re.findall(r"^\| \[.+\]\((.+)\.md\)", (FOLDER / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == list(PAGES)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("loss 0.5, 1,2,0.1, 9,999 nodes\n", "loss 5.1e-01, 1,2,0.11, 9,999 nodes\n"),
        ("...\ntest 0.8\n", "epoch 1\nepoch 2\ntest 0.79"),
        ("first\n...\nlast\n", "first\nlast\n"),
        ("time 0.5 s, test 1\n", "time 1 min 05 s, test 1\n"),
        ("a .../b.txt c\n", "a /one/two/b.txt c"),
        ("│ epoch │ 1.5 ms │\n", "│ epoch   │  2 s    │\n"),
    ],
)
def test_a_page_shows_an_output_with_other_times_and_near_numbers(text, output):
    assert pages.shows(text, output)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("loss 0.5\n", "loss nan\n"),
        ("loss 0.5\n", "loss 0.6\n"),
        ("12 nodes\n", "13 nodes\n"),
        ("0,1,0.5\n", "0,2,0.5\n"),
        ("...\ntest 0.8\n", "epoch 1\ntest 0.7\n"),
        ("loss 0.5\n", "loss 0.5, accuracy 0.7\n"),
        ("loss 0.5\naccuracy 0.7\n", "loss 0.5\n"),
        ("first\n...\nlast\n", "last\nfirst\n"),
        ("...\ntest 0.8\n", "validation 0.8\n"),
    ],
)
def test_a_page_does_not_show_an_output_with_other_words_or_numbers(text, output):
    assert not pages.shows(text, output)


def test_what_is_wrong_with_a_page_is_named_by_its_line(tmp_path):
    page = tmp_path / "page.md"
    for text, message in {
        "```sh\ntrue\nfalse\n```\n": "page.md:4: exit code 1",
        "```\n# a.py\nprint(1)\n```\n```sh\npython a.py\n```\n```text\ntwo\n```\n": "page.md:11 does not show:\n1",
        "```\n# b.py\nprint(1)  # before: print(2)\n```\n```sh\npython b.py\n```\n": "page.md:8: b.py printed before",
        "```text\nnothing was run\n```\n": "page.md:4 does not show",
    }.items():
        page.write_text(f"# A page\n\n{text}")
        folder = tmp_path / str(len(text))
        folder.mkdir()
        with pytest.raises(AssertionError, match=re.escape(message)):
            pages.follow(page, folder)
