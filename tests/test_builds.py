"""Builds that tests load: made once, made anew when what they are of changes, and named where they are missing."""

from __future__ import annotations

import builds
import pytest


@pytest.fixture
def target(tmp_path, monkeypatch):
    """A build named "made up" of one file, which counts how often it was made."""
    (tmp_path / "source.cpp").write_text("1")
    (tmp_path / "digest").write_text("1")
    times = []

    def make(folder):
        times.append((tmp_path / "source.cpp").read_text())
        if times[-1] == "wrong":
            raise RuntimeError("source.cpp: wrong")
        (folder / "it").write_text(times[-1])

    target = builds.Target(make, needs=(), sources=(str(tmp_path / "source.cpp"),))
    monkeypatch.setattr(
        builds,
        "TARGETS",
        {"made up": target, "no compiler": builds.Target(make, ("nocc",), "apt install nocc")},
    )
    monkeypatch.setattr(builds, "FOLDER", tmp_path / "made")
    monkeypatch.setattr(builds, "ROOT", tmp_path)
    monkeypatch.setattr(builds, "SOURCES", ())
    monkeypatch.setattr(builds, "digest", builds.digest.__wrapped__)
    return times


def test_a_build_is_made_once_for_each_text_of_its_sources(target, tmp_path, capsys):
    for text, count in (("1", 1), ("1", 1), ("2", 2), ("1", 3)):
        (tmp_path / "source.cpp").write_text(text)
        assert builds.main(["made up"]) == 0 and len(target) == count
        assert (builds.made("made up") / "it").read_text() == text
    assert capsys.readouterr().out.count("tests: building made up ...") == 3
    (tmp_path / "source.cpp").write_text("wrong")  # one that fails does not keep others from being made
    assert builds.main(["made up", "no compiler"]) == 1
    said = capsys.readouterr()
    assert said.err == " failed\ntests: made up: source.cpp: wrong\n"
    assert "no compiler is not built: no nocc (apt install nocc)" in said.out
    assert builds.main(["nonsense"]) == 2
    assert "no build 'nonsense'; expected test, long, torture, made up, no" in capsys.readouterr().err


def test_a_test_without_its_build_fails_and_names_the_command(target, monkeypatch, tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"^not built: \S*python\S* tests/builds.py 'made up'$"):
        builds.made("made up")
    builds.build("made up")
    (tmp_path / "source.cpp").write_text("2")
    with pytest.raises(pytest.fail.Exception, match=r"^not built"):
        builds.made("made up")
    for ci, ends in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(ends, match=r"^no nocc \(apt install nocc\)$|^not built"):
            builds.made("no compiler")
