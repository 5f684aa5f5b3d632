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
