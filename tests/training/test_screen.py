"""What a job says of its progress: lines in a file, a spinner and a bar on a terminal."""

from __future__ import annotations

import re
import time

import pytest

from mgg_hpc.runtime import exit_code
from mgg_hpc.training import screen
from mgg_hpc.training.screen import Screen, duration


@pytest.fixture
def hurried(monkeypatch):
    """Spinner and lines come at once; the screen is a file."""
    for name in ("MGG_TERMINAL", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(screen, "PATIENCE", 0.05)
    monkeypatch.setattr(screen, "EVERY", 0.05)


def worked(shown: bool | None = None, total: int = 200) -> None:
    """Read a graph, then train three epochs from the fourth on."""
    with Screen(shown) as seen:
        seen.doing("reading the graph")
        time.sleep(0.2)
        with seen.epochs(total, 3) as show:
            time.sleep(0.1)
            for epoch in (4, 5, 6):
                show(epoch, f"loss 0.{epoch}123  validation 0.9{epoch}00")
            show(6.5)
            time.sleep(0.2)


def test_lines_say_what_goes_on_and_what_is_left(hurried, capsys):
    worked()
    time.sleep(0.1)  # nothing comes any more
    out, err = capsys.readouterr()
    first, *others, last = err.splitlines()
    assert out == "" and first.startswith("reading the graph, for 0.") and first.endswith(" s")
    assert "epoch 3 of 200" in others
    assert re.fullmatch(r"epoch 6 of 200, loss 0\.6123, validation 0\.9600, \d+ s left", last), last


@pytest.mark.parametrize("why", ["asked", "another rank"])
def test_silence(hurried, capsys, monkeypatch, why):
    if why == "another rank":
        monkeypatch.setattr(exit_code, "is_first", lambda: False)
        monkeypatch.setenv("MGG_TERMINAL", "90")
    worked(False if why == "asked" else None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_terminal_shows_a_spinner_and_a_bar_within_its_width(hurried, capsys, monkeypatch, columns):
    monkeypatch.setenv("MGG_TERMINAL", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    worked()
    _, err = capsys.readouterr()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err)
    lines = [line for part in plain.split("\n") for line in part.split("\r")]
    assert any("reading the graph ..." in line for line in lines)
    bar = next(line for line in reversed(lines) if line.startswith("epoch"))
    assert re.search(r"epoch +6/200 .*━", bar) and max(map(len, lines)) <= columns
    if columns >= 80:
        assert bar.rstrip().endswith("loss 0.6123  validation 0.9600") and " s left" in bar


def test_times(rng):
    assert [duration(each) for each in (0.04, 7, 59.94, 61.2, 3599, 3600, 7199)] == [
        "0.0 s",
        "7 s",
        "59.9 s",
        "1 min 01 s",
        "59 min 59 s",
        "1 h 00 min",
        "1 h 59 min",
    ]
    for seconds in rng.uniform(60, 1e6, 50):
        found = [int(each) for each in re.findall(r"\d+", duration(seconds))]
        units = (60, 1) if "h" not in duration(seconds) else (3600, 60)
        assert abs(found[0] * units[0] + found[1] * units[1] - seconds) <= units[1]
