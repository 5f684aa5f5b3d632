"""Pages of `mgg report` in a headless browser: on a screen, on a phone and on paper, in grey, and without a network."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from jobs import blocks, run, write_job
from PIL import Image
from tools.report import browser

pytestmark = pytest.mark.long

SECTIONS = [
    "Runs",
    "Loss and scores",
    "Time",
    "What crosses, and balance",
    "Memory",
    "The tuner's path",
    "Timeline of an epoch",
    "Machine",
    "Job",
]
FIGURES = ["Loss and scores over epochs", "Time of each epoch", "Mean time of an epoch by phase"]
OF_ALL = ["Memory of each rank"]
OF_A_RUN = (
    "Rows that come to each rank of {}",
    "Settings that {} has tried for layer 1",
    "Timeline of epoch 6 of {}",
)
WIDTHS = {"screen": 1200, "phone": 390}
SMALLEST = 7  # CSS pixels of a letter's height
# Figures whose kinds are told apart by their filling.
FILLED = ("Mean time", "Rows that come", "Memory", "Timeline")

LOOK = """(() => {
  const box = (each) => {
    const found = each.getBoundingClientRect();
    return [found.left, found.top + scrollY, found.width, found.height];
  };
  return {
    headings: [...document.querySelectorAll("h2")].map((each) => each.textContent),
    figures: [...document.querySelectorAll("figure svg")].map((each) => ({
      label: each.getAttribute("aria-label"), box: box(each),
      texts: [...each.querySelectorAll("text")].map((text) => [text.textContent.trim(), box(text)]),
    })),
    tables: [...document.querySelectorAll("table")].map(box),
    width: document.documentElement.scrollWidth, window: innerWidth,
  };
})()"""


@pytest.fixture(scope="module")
def pages(require, tmp_path_factory):
    """Pages of a run on two ranks, and of two runs side by side."""
    require(browser.found() is not None, "no headless browser", f"apt install {browser.NAMES[0]}")
    folder = tmp_path_factory.mktemp("pages")
    job = {"train": {"epochs": 6}, "plan": {"transfer": "halo"}, "run": {"folder": "runs"}}
    write_job(folder, blocks(600), **job)
    assert run("launch", "-n", "2", "train", "job.toml", "--profile", folder=folder).returncode == 0
    first = folder / "runs" / "001"
    steps = [
        {"knob": "ps", "setting": {"ps": 16 << i, "dist": 1, "wpb": 2}, "seconds": 0.01 / (i + 1), "epoch": i}
        for i in range(4)
    ]
    row = {
        "rows": "layer 1",
        "source": "measured",
        "steps": steps,
        "chosen": steps[-1]["setting"],
        "gain": 0.5,
    }
    (first / "tuning.json").write_text(json.dumps({"format": "mgg-tuning", "version": 1, "rows": [row]}))
    second = shutil.copytree(first, folder / "runs" / "002")
    found = {"one run": [first], "two runs": [first, second]}
    for name, runs in found.items():
        assert run("report", *runs, "-o", f"{name}.html", folder=folder).returncode == 0
    return {name: folder / f"{name}.html" for name in found}


@pytest.fixture
def tab(pages, tmp_path):
    """A browser; of its processes and files nothing is left."""
    home = tmp_path / "home"
    with browser.started(browser.found(), home) as opened:
        yield opened
    assert not home.exists() and not browser.left(home)


def expected(page: str) -> list[str]:
    """Return the labels of a page's figures."""
    runs = ["runs/001", "runs/002"] if page == "two runs" else ["runs/001"]
    crosses, tried, lanes = ([each.format(name) for name in runs] for each in OF_A_RUN)
    return [*FIGURES, *crosses, *OF_ALL, *tried, *lanes]


def check(tab: browser.Browser, page: str, path: Path, picture: Path) -> dict:
    """Check the page that is opened, and its picture; return what `LOOK` found."""
    assert tab.errors == [] and tab.requests == [path.as_uri()]
    seen = tab.value(LOOK)
    assert seen["headings"] == SECTIONS
    assert [each["label"] for each in seen["figures"]] == expected(page)
    assert seen["width"] <= seen["window"]  # the page itself scrolls downwards only
    tab.screenshot(picture)
    pixels = pixels_of(picture)
    for each in seen["figures"]:
        assert each["box"][2] > 300 and each["box"][3] > 60
        assert is_drawn(part(pixels, each["box"])), each["label"]
        assert min(box[3] for _, box in each["texts"]) >= SMALLEST
        assert not overlapping(each["texts"]), each["label"]
        assert all(inside(box, each["box"]) for _, box in each["texts"]), each["label"]
    assert all(is_drawn(part(pixels, box)) for box in seen["tables"])
    return seen


def pixels_of(picture: Path) -> np.ndarray:
    """Return a picture as float64 [height, width, 3]."""
    with Image.open(picture) as opened:
        return np.asarray(opened.convert("RGB"), np.float64)


def part(pixels: np.ndarray, box: list[float]) -> np.ndarray:
    left, top, width, height = (max(0, round(each)) for each in box)
    return pixels[top : top + height, left : left + width]


def is_drawn(pixels: np.ndarray) -> bool:
    """Whether at least one in a hundred pixels differs from the commonest."""
    counts = np.unique(pixels @ [1 << 16, 1 << 8, 1], return_counts=True)[1]
    return len(counts) > 2 and counts.max() < 0.99 * counts.sum()


def overlapping(texts: list) -> list[tuple[str, str]]:
    """Return the pairs of texts that lie on each other by more than a pixel."""
    found = []
    for (first, a), (second, b) in itertools.combinations(texts, 2):
        across = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
        down = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
        if first and second and across > 1 and down > 4:  # a line's height has room around its letters
            found.append((first, second))
    return found


def inside(box: list[float], outer: list[float]) -> bool:
    return outer[0] - 1 <= box[0] and box[0] + box[2] <= outer[0] + outer[2] + 1


@pytest.mark.parametrize("page", ["one run", "two runs"])
def test_a_page_opens_whole_on_a_screen_on_a_phone_and_on_paper(pages, tab, tmp_path, page):
    for name, width in WIDTHS.items():
        tab.view(width, phone=name == "phone")
        tab.requests.clear()
        tab.open(pages[page])
        check(tab, page, pages[page], tmp_path / f"{name}.png")
    tab.print(tmp_path / "page.pdf")
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF") and 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 12
    assert tab.errors == []


@pytest.mark.parametrize("eyes", ["achromatopsia", "deuteranopia", "protanopia", "tritanopia"])
def test_kinds_are_told_apart_without_some_colours(pages, tab, tmp_path, eyes):
    tab.view(WIDTHS["screen"])
    tab.call("Emulation.setEmulatedVisionDeficiency", type=eyes)
    tab.open(pages["one run"])
    seen = check(tab, "one run", pages["one run"], tmp_path / "picture.png")
    pixels = pixels_of(tmp_path / "picture.png")
    compared, colours = 0, {}
    for each in seen["figures"]:
        if not each["label"].startswith(FILLED):
            continue
        for (first, a), (second, b) in itertools.combinations(swatches(pixels, each), 2):
            assert np.abs(a - b).mean() > 5, (each["label"], first, second)
            compared += 1
        for kind, sample in swatches(pixels, each):
            colours.setdefault(kind, []).append(sample.mean((0, 1)))
    assert compared > 20
    # A phase looks the same wherever it is drawn.
    assert len(colours["aggregate"]) == len(colours["dense"]) == 2
    for kind, found in colours.items():
        assert np.ptp(found, axis=0).max() < 15, kind


def swatches(pixels: np.ndarray, figure: dict) -> list[tuple[str, np.ndarray]]:
    """Return the samples of a figure's legend, which stand left of its words, above the axes."""
    words = [(text, box) for text, box in figure["texts"] if re.fullmatch(r"[a-z][a-z ]+", text)]
    top = min(box[1] for _, box in words)
    found = []
    for text, (left, above, _, height) in words:
        if above < top + 2.5 * height:
            sample = part(pixels, [left - 2.7 * height, above + 0.3 * height, 1.8 * height, 0.4 * height])
            found.append((text, sample[:4, :20]))
    return found


FAULTS = {
    "a script fails": "<script>throw new Error('planted')</script>",
    "a script speaks": "<script>console.log('planted')</script>",
    "a picture from elsewhere": '<img src="http://192.0.2.1/planted.png" alt="">',
    "a style beside the page": '<link rel="stylesheet" href="planted.css">',
    "a section more": "<h2>Planted</h2>",
    "an empty figure": '<figure><svg aria-label="planted" width="600" height="200"></svg></figure>',
    "wider than the window": '<div style="width: 3000px">planted</div>',
    "blank": "<style>body > * { visibility: hidden }</style>",
    "words on words": "<style>figure svg text { font-size: 40px !important }</style>",
}


def test_what_is_wrong_with_a_page_is_seen(pages, tab, tmp_path):
    """The checks above fail for a page with any of these faults."""
    tab.view(WIDTHS["screen"])
    path, text = tmp_path / "planted.html", pages["one run"].read_text()
    for name, fault in {"none": "", **FAULTS}.items():
        path.write_text(text.replace("</body>", f"{fault}</body>"))
        tab.requests.clear(), tab.errors.clear()
        tab.open(path)
        try:
            check(tab, "one run", path, tmp_path / "picture.png")
        except AssertionError:
            assert name != "none"
        else:
            assert name == "none", name
