"""Criteo's logs: lines against a parser of Python's, faults by line and column, and files of clicks."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from data.graphs import refused

from mgg_hpc.__main__ import main
from mgg_hpc.data.clicks import criteo
from mgg_hpc.data.clicks.criteo import INTEGERS, MISSING, WORDS, read_criteo
from mgg_hpc.data.clicks.generate import DISTINCT, draw_clicks, laws, write_text, zipf
from mgg_hpc.data.clicks.store import open_clicks, write_clicks
from mgg_hpc.tools import clicks

COLUMNS = ("label", "dense", "category")


def lines(rng, count: int) -> list[str]:
    """Draw lines with missing values, signs, leading zeros, both cases, and words of each length."""
    found = []
    for _ in range(count):
        fields = [str(rng.integers(0, 2))]
        for _ in range(INTEGERS):
            size = 10 ** int(rng.integers(0, 10))
            value = int(np.clip(rng.integers(-2 * size, 2 * size), 1 - 2**31, 2**31 - 1))
            fields.append(rng.choice(["", f"{value}", f"{value:+06d}".replace("+", "")]))
        for _ in range(WORDS):
            word = f"{rng.integers(0, 1 << 32):08x}"
            fields.append(rng.choice(["", word, word.upper(), word[int(rng.integers(0, 8)) :]]))
        found.append("\t".join(fields))
    return found


def parsed(line: str) -> tuple[int, list[int], list[int]]:
    label, *fields = line.split("\t")
    dense = [int(field) if field else MISSING for field in fields[:INTEGERS]]
    return int(label), dense, [int(field or "0", 16) for field in fields[INTEGERS:]]


def joined(parts: list) -> list[np.ndarray]:
    return [np.concatenate([getattr(each, name) for each in parts]) for name in COLUMNS]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_those_of_a_parser(rng, tmp_path, monkeypatch, newline, packed):
    monkeypatch.setattr(criteo, "PIECE", 3000)  # several pieces, and lines across their ends
    given = lines(rng, 400)
    text = newline.join(given) + newline * bool(rng.integers(0, 2))
    (tmp_path / "day").write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = joined(list(read_criteo(tmp_path / "day")))
    for mine, theirs in zip(found, zip(*map(parsed, given), strict=True), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_reading_goes_on_after_a_block(rng, tmp_path, monkeypatch):
    monkeypatch.setattr("mgg_hpc.data.readers.compressed.BLOCK_BYTES", 4000)
    (tmp_path / "day").write_text("\n".join(lines(rng, 100)) + "\n")
    first, *rest = list(read_criteo(tmp_path / "day"))
    assert len(rest) > 2
    for mine, theirs in zip(
        joined(list(read_criteo(tmp_path / "day", **first.end))), joined(rest), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("column", "field", "message"),
    [
        (0, "2", "column 1 is '2'; expected 0 or 1"),
        (0, "", "column 1 is ''; expected 0 or 1"),
        (0, "-1", "column 1 is '-1'"),
        (3, "1.5", "column 4 is '1.5'; expected an integer, or nothing"),
        (13, "-", "column 14 is '-'"),
        (13, "2147483648", "column 14 is '2147483648'"),
        (2, "12345678901", "column 3 is '12345678901'"),
        (2, "1:", "column 3 is '1:'"),
        (2, "/", "column 3 is '/'"),
        (14, "0x12", "column 15 is '0x12'; expected a word of 8 hexadecimal digits, or nothing"),
        (39, "123456789", "column 40 is '123456789'"),
        (39, "\x10", "column 40 is"),
        (20, "`f", "column 21 is '`f'"),
        (20, "g", "column 21 is 'g'"),
        (20, "é", "column 21 is"),
        (20, "1\t2", "has 41 columns; expected 40"),
    ],
)
def test_faults_are_named_or_passed_over(rng, tmp_path, column, field, message):
    given = lines(rng, 30)
    fields = given[17].split("\t")
    fields[column] = field
    (tmp_path / "day").write_text("\n".join([*given[:17], "\t".join(fields), *given[18:]]) + "\n")
    with refused(f"day:18: .*{re.escape(message)}"):
        list(read_criteo(tmp_path / "day"))
    (block,) = read_criteo(tmp_path / "day", skip_bad=True)
    assert block.bad == 1
    np.testing.assert_array_equal(block.category, [parsed(each)[2] for each in given[:17] + given[18:]])


def test_a_wrong_line_is_found_by_halving_its_piece(rng, tmp_path, monkeypatch):
    """Others are parsed once, and the first wrong line of a strict reader is the first of the file."""
    given, wrong, seen, parsed_text = lines(rng, 400), {0, 399, *rng.integers(0, 400, 2)}, [], criteo._parsed
    given = ["bad" if number in wrong else line for number, line in enumerate(given)]
    (tmp_path / "day").write_text("\n".join(given) + "\n")
    monkeypatch.setattr(criteo, "PIECE", 3000)
    monkeypatch.setattr(criteo, "_parsed", lambda text: seen.append(len(text)) or parsed_text(text))
    (block,) = read_criteo(tmp_path / "day", skip_bad=True)
    assert block.bad == len(wrong) and sum(seen) < (tmp_path / "day").stat().st_size + 3 * 3000 * len(wrong)
    sound = [parsed(line)[2] for line in given if line != "bad"]
    np.testing.assert_array_equal(block.category, sound)
    later = max(wrong - {399})
    (tmp_path / "day").write_text(
        "\n".join([*[line for line in given[:later] if line != "bad"], *given[later:]])
    )
    with refused(f"day:{later + 3 - len(wrong)}: has 1 column"):
        list(read_criteo(tmp_path / "day"))


def test_generated_logs_have_the_distinct_words_of_criteo_and_are_read_back(tmp_path):
    drawn = list(draw_clicks(70_000, seed=3))
    write_text(tmp_path / "day", iter(drawn))
    for mine, theirs in zip(joined(list(read_criteo(tmp_path / "day"))), joined(drawn), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    words = joined(drawn)[2]
    for column, count in enumerate(DISTINCT):
        found = np.unique(words[:, column], return_counts=True)[1]
        assert len(found) <= count and (len(found) == count or count > 200)
        if count > 1000:  # by Zipf's law, the first is 2^1.05 to 2^1.23 times as frequent as the second
            assert 1.5 < np.sort(found)[-1] / np.sort(found)[-2] < 2.5


def test_columns_have_as_many_distinct_words_as_criteos_in_as_many_rows(rng):
    """The expected number by quadrature over places, compared with draws of 300,000 rows."""
    count, exponent = laws()

    def distinct(column: int, rows: int) -> float:
        places, slope = np.geomspace(1, count[column], 5_000), 1 - exponent[column]
        chance = (places**slope - (places + 1) ** slope) / (1 - (count[column] + 1) ** slope)
        return np.trapezoid(-np.expm1(-rows * chance), places) + 1

    for column, expected in enumerate(DISTINCT):
        assert distinct(column, 45_840_617) == pytest.approx(expected, rel=0.01)
        if expected > 1_000_000:
            drawn = zipf(rng.random(300_000), count[column], exponent[column])
            assert len(np.unique(drawn)) == pytest.approx(distinct(column, 300_000), rel=0.01)


def test_logs_become_a_file_of_clicks(rng, tmp_path, capsys):
    days = [lines(rng, 50), lines(rng, 30)]
    for number, day in enumerate(days):
        (tmp_path / f"{number}").write_text("\n".join([*day, "bad"][: len(day) + number]) + "\n")
    arguments = ["import", "clicks", f"{tmp_path}/0", f"{tmp_path}/1", "-o", f"{tmp_path}/c.h5"]
    assert main(arguments) == 2 and "1:31: has 1 column;" in capsys.readouterr().err
    assert main([*arguments, "--skip-bad"]) == 0
    assert "80 clicks of 2 days\npassed over 1 bad line" in capsys.readouterr().out
    with open_clicks(tmp_path / "c.h5") as file:
        assert file.rows == 80 and file.days.tolist() == [0, 50, 80]
        np.testing.assert_array_equal(
            file.read(40, 60).category, [parsed(each)[2] for each in (days[0] + days[1])[40:60]]
        )
    assert not list(tmp_path.glob(".*"))
    assert (
        main([*arguments, "--simple", "--force"]) == 2
        and "--simple does not go with" in capsys.readouterr().err
    )
    assert main(["import", "x.npz", "--skip-bad", "-o", "x"]) == 2
    (tmp_path / "x").write_text("")
    with refused("is no file of clicks"), open_clicks(tmp_path / "x"):
        pass


@pytest.mark.parametrize("packed", [False, True])
def test_a_killed_import_goes_on_at_a_block(rng, tmp_path, capfd, monkeypatch, packed):
    """The file has the same bytes as one that was made at once, and no line is read a second time."""
    monkeypatch.setattr("mgg_hpc.data.readers.compressed.BLOCK_BYTES", 4000)
    monkeypatch.setattr("mgg_hpc.data.assembly.work.KEEP_SECONDS", 0)
    for name in "01":
        text = "\n".join(lines(rng, 60)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if packed else text)
    logs, read = [f"{tmp_path}/0", f"{tmp_path}/1"], clicks.read_criteo
    assert main(["import", "clicks", *logs, "-o", f"{tmp_path}/whole.h5"]) == 0
    again = ["import", "clicks", *logs, "-o", f"{tmp_path}/c.h5"]
    left = int(rng.integers(1, len([block for log in logs for block in read(Path(log))])))
    seen = []

    def counted(path, **more):
        for block in read(path, **more):
            seen.append(block)
            if len(seen) > left:
                os._exit(9)
            yield block

    monkeypatch.setattr(clicks, "read_criteo", counted)
    if not (child := os.fork()):
        main(again)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9 and (tmp_path / ".c.h5.build").is_dir()
    assert main(["clean", "--dry-run", str(tmp_path)]) == 0 and ".c.h5.build" in capfd.readouterr().out
    left = 1 << 30
    assert main(again) == 0 and 0 < sum(len(block.label) for block in seen) < 120
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "c.h5", "whole.h5"]


def test_an_import_goes_on_after_a_bad_line(rng, tmp_path, capsys, monkeypatch):
    """Logs before the bad line are read once, and bytes are as in one go; a strict call uses no skipped lines."""
    (tmp_path / "0").write_text("\n".join(lines(rng, 40)))
    (tmp_path / "1").write_text("\n".join([*lines(rng, 20), "bad"]))
    (tmp_path / "2").write_text("\n".join(lines(rng, 10)))
    logs, read, seen = [f"{tmp_path}/{name}" for name in "012"], clicks.read_criteo, []
    words = ["import", "clicks", *logs, "-o"]
    assert main([*words, f"{tmp_path}/whole.h5", "--skip-bad"]) == 0
    again, stops = [*words, f"{tmp_path}/c.h5"], ""

    def noted(path, **more):
        if path.name == stops:
            raise KeyboardInterrupt
        if stops and len(seen) > 5:  # files are cut: no manifest may tell of more
            assert not (tmp_path / ".c.h5.build" / "manifest.json").exists()
        seen.append(path.name)
        return read(path, **more)

    monkeypatch.setattr(clicks, "read_criteo", noted)
    assert main(again) == 2 and "1:21: has 1 column;" in capsys.readouterr().err and seen == ["0", "1"]
    assert main([*again, "--skip-bad"]) == 0 and seen == ["0", "1", "1", "2"]
    assert "70 clicks of 3 days\npassed over 1 bad line" in capsys.readouterr().out
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    (tmp_path / "c.h5").unlink()
    stops = "2"
    with suppress(KeyboardInterrupt):  # the bad line is passed over, and what was read is kept
        assert main([*again, "--skip-bad"]) != 0
    assert (tmp_path / ".c.h5.build").is_dir()
    assert main(again) == 2 and "1:21: has 1 column;" in capsys.readouterr().err
    assert seen[4:] == ["0", "1", "0", "1"]


def test_a_missing_log_ends_an_import_before_any_is_read(tmp_path, capsys):
    (tmp_path / "day_0").write_text("wrong\n")
    words = ["import", "clicks", str(tmp_path / "day_0"), str(tmp_path / "no"), "-o", str(tmp_path / "c.h5")]
    assert main(words) == 2
    assert f"{tmp_path / 'no'} cannot be read: No such file" in capsys.readouterr().err


def test_an_identity_depends_on_rows_and_days_alone(rng, tmp_path):
    drawn = [*draw_clicks(70_000, seed=3)]
    first, *rest = drawn
    label = first.label.copy()
    label[int(rng.integers(0, len(label)))] ^= 1
    found = []
    for days in ([drawn], [drawn], [[first], rest], [[replace(first, label=label), *rest]]):
        write_clicks(tmp_path / "c.h5", [lambda day=day: day for day in days], force=True)
        with open_clicks(tmp_path / "c.h5") as file:
            found.append(file.uuid)
    assert found[0] == found[1] and len(set(found)) == 3


def test_a_damaged_file_is_refused(tmp_path):
    write_clicks(tmp_path / "c.h5", [partial(draw_clicks, 30)])
    for name, value in (
        ("days", None),
        ("days", [30]),
        ("days", [0, 20, 10, 30]),
        ("version", 2),
        ("version", [1, 1]),
    ):
        shutil.copy(tmp_path / "c.h5", tmp_path / "d.h5")
        with h5py.File(tmp_path / "d.h5", "r+") as file:
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value
        said = (
            "the attribute days"
            if name == "days"
            else f"of version ('list'|{value}); this program reads version 1"
        )
        with refused(f"d.h5: .*{said}"), open_clicks(tmp_path / "d.h5"):
            pass
    with h5py.File(tmp_path / "d.h5", "r+") as file:
        file.attrs["version"] = 1
        file["click/label"][7] = -3
    with open_clicks(tmp_path / "d.h5") as clicks, refused("d.h5: row 7 has label -3; expected 0 or 1"):
        clicks.read(5, 30)
    with h5py.File(tmp_path / "c.h5", "r+") as file:
        file["elsewhere"] = file["click/dense"][:20]
        del file["click/dense"]
        file["click/dense"] = h5py.SoftLink("/elsewhere")
    with refused("/click/dense is missing"), open_clicks(tmp_path / "c.h5"):
        pass
