"""The page of a run on several ranks: their balance, what crosses, and the timeline."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from jobs import blocks, run, write_job
from tools.report.pages import checked, profile_of, summary_of

from mgg_hpc.__main__ import main
from mgg_hpc.data import writer
from mgg_hpc.tools.report.least import crossing


@pytest.mark.long
def test_two_ranks_have_their_balance_and_a_timeline(tmp_path):
    write_job(tmp_path, blocks(600), train={"epochs": 6}, plan={"transfer": "halo"}, run={"folder": "runs"})
    done = run("launch", "-n", "2", "train", "job.toml", "--profile", folder=tmp_path)
    assert done.returncode == 0
    folder = tmp_path / "runs" / "001"
    done = run("report", folder, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page, summary = checked(folder / "report.html"), summary_of(folder)
    found = crossing(tmp_path / "g.h5", np.array(summary["bounds"]))
    rows = page.table("least")
    for rank, (row, each) in enumerate(zip(rows, summary["per_rank"], strict=False)):
        assert row["remote edges"] == f"{each['remote_edges']:,}" == f"{found.edges[rank].sum():,}"
        assert row["each row once"] == f"{each['halo_rows']:,}" == f"{found.halo[rank].sum():,}"
        assert row["least"] == f"{found.least[rank].sum():,}"
        assert row["moved an epoch"] == f"{each['remote_rows']:,}"
    assert rows[2]["least"] == f"{found.least.sum():,}"
    assert f"which is {found.halo.sum() / found.least.sum():.2f} times the least" in page.said
    assert "epoch 6, as it was profiled" in page.said and "a round is pushed here" in page.said
    assert len(page.table("hidden")) == sum(
        "hidden_share" in each for each in profile_of(folder)["exchanges"]
    )

    # Exchanges lie within aggregations, and a round is waited for in its turn.
    for rank in range(2):
        trace = json.loads(gzip.decompress((folder / "profile" / f"rank-{rank}.json.gz").read_bytes()))
        events = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
        sums = [
            (each["ts"], each["ts"] + each["dur"]) for each in events if each["name"].endswith(": aggregate")
        ]
        rounds = [each for each in events if each.get("cat") == "exchange"]
        calls = {each["args"]["call"] for each in rounds}
        assert (
            calls == set(range(len(sums))) and len(sums) == 3 * 5
        )  # of an epoch three in the step, two after it
        for each in rounds:
            assert each["dur"] >= 0
            assert any(
                first - 50 < each["ts"] and each["ts"] + each["dur"] < last + 50 for first, last in sums
            )
        waits = [each["ts"] for each in rounds if "wait" in each["name"]]
        assert waits == sorted(waits)

    writer.write(tmp_path / "g.h5", blocks(600, seed=4), force=True)
    assert main(["report", str(folder)]) == 0
    assert "has other rows, or in another order" in (folder / "report.html").read_text()
    (tmp_path / "g.h5").unlink()
    assert main(["report", str(folder)]) == 0
    assert "The least that must cross is left out" in (folder / "report.html").read_text()
    (folder / "profile" / "rank-1.json.gz").write_bytes(b"no gzip")
    assert main(["report", str(folder)]) == 2
