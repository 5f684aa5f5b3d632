"""Documents in the user's cache folder: whole under concurrent writers, and nothing where the folder cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mgg_hpc.data import user_cache

WRITER = """
import sys
from pathlib import Path
from mgg_hpc.data import user_cache
number = 0
while not Path(sys.argv[2]).exists():
    number += 1
    text = f"{sys.argv[1]} {number}" * 3000
    user_cache.write("deep/one.json", {"format": "f", "version": 1, "first": text, "last": text})
"""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mgg-hpc"


def test_readers_find_whole_documents_while_others_write(cache, tmp_path):
    enough = tmp_path / "enough"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(number), enough]) for number in range(3)]
    seen = set()
    try:
        while len(seen) < 20:
            assert all(writer.poll() is None for writer in writers)
            found, word = user_cache.read("deep/one.json", "f", 1)
            assert word == ""
            if found is not None:
                assert found["first"] == found["last"]
                seen.add(found["first"][:5])
    finally:
        enough.touch()
        codes = {writer.wait() for writer in writers}
    assert codes == {0}
    assert [path.name for path in (cache / "deep").iterdir()] == ["one.json"]
    assert (cache / "deep" / "one.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [b"{", b"[1]", b"\xff", b'{"format": "x", "version": 1}', b'{"format": "f", "version": 2}', b"[" * 5000],
)
def test_what_is_damaged_or_of_another_version_is_named(cache, content):
    cache.mkdir()
    (cache / "one.json").write_bytes(content)
    found, word = user_cache.read("one.json", "f", 1)
    assert found is None and word.startswith(f"{cache / 'one.json'}: ignored, since it ")


def test_without_a_folder_nothing_is_kept_and_nothing_fails(cache, tmp_path, monkeypatch):
    cache.write_text("a file where the folder should be")
    user_cache.write("one.json", {"format": "f", "version": 1})
    assert user_cache.read("one.json", "f", 1) == (None, "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache.folder() == Path(os.environ["HOME"]) / ".cache" / "mgg-hpc"
