"""The benchmark of embedding look-ups on small tables: its variants give the same rows, and it counts bytes."""

from __future__ import annotations

import csv
import re

import pytest
import torch

pytestmark = pytest.mark.long
SMALL = ("--dims=4", "--rows=30", "--batch=12", "--turns=1")


def rows(ran, tmp_path, *words: str) -> list[dict[str, str]]:
    done = ran("dlrm", *words, f"--output={tmp_path}/found.csv")
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader((tmp_path / "found.csv").open()))


@pytest.mark.parametrize("exchange", [[], ["--gloo"]])
def test_lookups_are_compared_and_their_bytes_counted(ran, tmp_path, exchange):
    found = {row["variant"].split()[0]: row for row in rows(ran, tmp_path, "lookup", *SMALL, *exchange)}
    assert [row["messages"] for row in found.values()] == ["0", "6", "4"]
    # An index or a length is 8 bytes, and a vector 16. Half of the tables are another rank's. A rank sends the lengths
    # and partial sums of all of its bags, and indices of rows of another rank.
    assert int(found["whole"]["crossing_bytes"]) == 2 * 13 * 6 * (8 + 16)
    assert 0 <= int(found["rows,"]["crossing_bytes"]) - 2 * 26 * 6 * (8 + 16) <= 2 * 26 * 6 * 8
    assert int(found["mgg"]["crossing_bytes"]) % 16 == 0
    assert 0 < int(found["mgg"]["crossing_bytes"]) <= 2 * 26 * 6 * 16


def test_a_table_larger_than_memory_is_trained(ran, tmp_path):
    how = ("--size=1G", "--memory=600M", "--dim=32", "--batch=64", "--turns=20", f"--folder={tmp_path}")
    (row,) = rows(ran, tmp_path, "large", *how)
    assert row["ranks"] == "2" and float(row["last_loss"]) < float(row["first_loss"])
    assert 0.5 < float(row["hit_rate"]) < 1 and int(row["peak_mib"]) < 660
    assert (
        ran("dlrm", "large", "--ranks=1", "--memory=1M").stderr.count("the process alone takes that much")
        == 1
    )


def test_one_process_and_the_reader_are_timed(ran, tmp_path):
    assert [row["variant"] for row in rows(ran, tmp_path, "alone", *SMALL)] == [
        f"{part}: {name}" for part in ("forward", "step") for name in ("mgg", "torch")
    ]
    (row,) = rows(ran, tmp_path, "read", "--rows=3000", "--ranks=1")
    assert int(row["rows_per_s"]) > 0


def test_a_batch_that_ranks_cannot_share_is_refused(ran):
    done = ran("dlrm", "lookup", "--batch=2049", "--turns=1")
    assert done.returncode == 2 and "--batch 2049 on 2 ranks; give a multiple of 2\n" in done.stderr


@pytest.mark.parametrize("part", ["lookup --ranks=1", "alone"])
def test_a_gpu_that_is_not_there_is_one_line(ran, part):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = ran("dlrm", *part.split(), *SMALL, "--device=cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"dlrm.py: error: no CUDA device .*\n", done.stderr)
