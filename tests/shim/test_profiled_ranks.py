"""`mgg train --profile` on GPUs that the shim plays: each transfer is taken apart there as on a GPU."""

from __future__ import annotations

import json

import jobs
import pytest

from .test_ranks import SHARED, columns, on_gpus, trained  # noqa: F401


@pytest.mark.long
def test_two_ranks_say_what_they_hide(trained, tmp_path):  # noqa: F811
    jobs.write_job(tmp_path, jobs.blocks(), train={"epochs": 5}, plan={"transfer": ["get", "halo"]})
    trained(2, *SHARED)
    losses = columns(tmp_path / "runs")["loss"]
    said = trained(2, *SHARED, "--profile")
    assert columns(tmp_path / "runs")["loss"] == losses
    folder = tmp_path / "runs" / "latest" / "profile"
    assert {path.name for path in folder.iterdir()} == {"rank-0.json.gz", "rank-1.json.gz", "summary.json"}
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["backend"], summary["epochs"], summary["without_graphs"]) == ("cuda", [4, 5], False)
    exchanges = [(each["layer"], each["transfer"]) for each in summary["exchanges"]]
    assert exchanges == [(1, "get"), (2, "halo"), (2, "halo")]
    for each in summary["exchanges"]:
        sums, moves, both = each["sums_ms"], each["transfer_ms"], each["both_ms"]
        assert each["hidden_share"] == pytest.approx((sums + moves - both) / min(sums, moves))
    assert "GPU ms" not in said  # which only CUDA tells of
