"""docs/gpu-results.md: from what was found to what stands there."""

from __future__ import annotations

import json

import pytest

from gpu import page

pytestmark = pytest.mark.long

GPU = {"name": "NVIDIA H200", "multiprocessors": 132, "memory_bytes": 141 << 30}
GPU |= {"driver": 13010, "runtime": 13000}


def ended(part, verdict="passed", cases=0, passed=None, why="", date=""):
    counts = {"cases": cases, "passed": cases if passed is None else passed}
    return {"part": part, "verdict": verdict, **counts, "seconds": 3.4, "why": why, "date": date}


def cell(times, graph="rmat20", dtype="float32", width=64):
    return {"graph": graph, "dtype": dtype, "width": width, "times": times}


@pytest.fixture
def results(tmp_path, rng):
    """A run's documents, and the numbers in them."""
    drawn = dict(zip("abcdefgh", (round(float(each), 2) for each in rng.uniform(1, 9, 8)), strict=True))
    cases = int(rng.integers(1000, 9000))
    parts = [ended("table", cases=cases), ended("processes-2", cases=55)]
    parts += [ended("processes-2-mps", "left out", why="no daemon")]
    parts += [ended(name, cases=1) for name in page.TOOLS] + [ended("planted", "failed", 4, 3, "a | b")]
    floor = {"mean": drawn["a"], "worst": cell(drawn["b"], width=16)}
    cusparse = {"mean": drawn["c"], "worst": cell(drawn["d"], "uniform20")}
    halves = [(drawn["e"], "bfloat16"), (0.5, "float16"), (9.5, "bfloat16")]
    benches = {
        "aggregate": {"summary": {"over_floor": floor, "speedup": {"cusparse": cusparse}}},
        "half-rows": {"summary": {"half": [cell(times, dtype=dtype) for times, dtype in halves]}},
        "overlap": {
            "balance": {"halo": {"hidden": drawn["f"], "share": 0.05, "ratio": 1.0}},
            "cases": [{"share": 0, "over_direct": {"halo": drawn["g"], "get": 1.0}}],
        },
        "huge": {"cases": [{"name": "sums", "ms": {"median": 10 * drawn["h"]}, "of_copy": 0.5}]},
    }
    documents = {name: {"format": "mgg-bench", "device": GPU, **found} for name, found in benches.items()}
    documents["test"] = {"format": "mgg-gpu-acceptance", "machine": GPU, "parts": parts}
    folder = tmp_path / "results"
    folder.mkdir()
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document | {"date": "2026-11-22T10:00:00+00:00"}))
    (folder / "aggregate.md").write_text("# all figures\n")
    return folder, drawn, cases


def test_a_run_is_kept_and_written(results, tmp_path, monkeypatch):
    folder, drawn, cases = results
    monkeypatch.setattr(page, "PICTURES", ())
    kept, docs = tmp_path / "benchmarks" / "gpu", tmp_path / "docs"
    docs.mkdir()
    assert page.main([str(folder)], kept, docs / "page.md") == 0
    run = kept / "2026-11-22T1000-nvidia-h200"
    assert (run / "aggregate.json").read_bytes() == (folder / "aggregate.json").read_bytes()
    said = (docs / "page.md").read_text()
    rows = dict(line[2:].split(" | ")[::2][:2] for line in said.splitlines() if line.startswith("| "))
    of = {name: f"{value:.2f}" for name, value in drawn.items()}
    wanted = {
        "cases on the GPU, one process and several": f"{cases + 55:,} of {cases + 55:,} pass; not: processes-2-mps",
        "sanitizers; planted faults": f"0 reports of {', '.join(page.TOOLS)}; planted 3 of 4",
        "our time relative to the gather floor": f"worst {of['b']} (rmat20, float32 x 16), geometric mean {of['a']}",
        "times as fast as cuSPARSE CSR_ALG2, float32": f"{of['c']}, least {of['d']} (uniform20, float32 x 64)",
        "bfloat16 rows over float32, widths of 64 and more": f"least {of['e']} (rmat20, bfloat16 x 64)",
        "hidden share where transfer and sums take as long": f"{of['f']}, at a share of 0.05 "
        "(transfer over sums 1.00)",
        "pipelines over direct where nothing is remote": f"halo {of['g']}, get 1.00",
        "a GCN's epoch, and times as fast as PyG's": "not measured",
        "a layer over 111 million rows and 1.6 billion edges": f"sums {10 * drawn['h']:.1f} ms, "
        "0.50 of the copy bandwidth",
    }
    assert {what: rows[what] for what in wanted} == wanted
    assert "## NVIDIA H200, 2026-11-22" in said and "driver for CUDA 13.1, runtime 13.0" in said
    assert "| planted | failed | 3 / 4 | 3 | a / b |" in said
    assert "[aggregate](../benchmarks/gpu/2026-11-22T1000-nvidia-h200/tables/aggregate.md)" in said
    assert "None yet" not in said


def contact(folder):
    """A folder of results whose only command was `make gpu-contact`, and what its page says."""
    for path in folder.glob("*.*"):
        if path.stem not in ("aggregate", "test"):
            path.unlink()
    (folder / "aggregate.json").rename(folder / f"{page.CONTACT_BENCH}.json")
    (folder / "aggregate.md").unlink()
    (folder / "test.json").rename(folder / "contact.json")
    return page.read(folder)


def figures(found):
    return {each.what: each.cells(found)[2] for each in page.FIGURES}


def test_a_first_contact_has_a_page(results, tmp_path):
    folder, drawn, cases = results
    said = figures(contact(folder))
    of = {name: f"{value:.2f}" for name, value in drawn.items()}
    assert said["our time relative to the gather floor"] == (
        f"worst {of['b']} (rmat20, float32 x 16), geometric mean {of['a']}; aggregate-one only"
    )
    assert said["times as fast as cuSPARSE CSR_ALG2, float32"].endswith("; aggregate-one only")
    assert said["cases on the GPU, one process and several"].startswith(
        f"{cases + 55:,} of {cases + 55:,} pass"
    )
    written = "\n".join(page.section(folder, tmp_path / "docs" / "page.md"))
    assert "`make gpu-contact`, 2026-11-22:" in written and "gpu-test`, 2026" not in written


def test_of_each_part_the_newest_ending_counts(results):
    """Whichever command ran it; the cases of benchmarks are none of the GPU's."""
    found = page.read(results[0])
    found["test"]["parts"] = [ended("table", "failed", 9, 8, date="2026-11-20"), ended("random", "not run")]
    of_contact = [ended("table", cases=9, date="2026-11-21"), ended(page.CONTACT_BENCH, cases=77)]
    of_bench = [ended("overlap", cases=5), ended("epoch", "failed")]
    found |= {"contact": {"parts": of_contact}, "bench": {"parts": of_bench}}
    assert figures(found)["cases on the GPU, one process and several"] == "9 of 9 pass"


def test_results_of_other_sources_are_shown_and_do_not_count(results, tmp_path):
    folder, drawn, _ = results
    found = page.read(folder)
    reached = {each.what: each.cells(found)[3] for each in page.FIGURES}
    assert reached["cases on the GPU, one process and several"] == "yes"
    listed = [
        ended("aggregate", cases=1),
        ended("overlap"),
        ended("huge", "failed"),
        ended("half-rows", "not run"),
    ]
    listed[0]["of_other_sources"] = found["test"]["parts"][0]["of_other_sources"] = True
    for part in found["test"]["parts"][3:]:
        part["of_other_sources"] = True  # of all tools
    (folder / "test.json").write_text(json.dumps(found["test"]))
    kind = found["test"] | {"parts": listed}
    (folder / "bench.json").write_text(json.dumps(kind))
    found = page.read(folder)
    cells = {each.what: each.cells(found)[2:4] for each in page.FIGURES}
    floor = (
        f"worst {drawn['b']:.2f} (rmat20, float32 x 16), geometric mean {drawn['a']:.2f}; of other sources"
    )
    assert cells["our time relative to the gather floor"] == (floor, "")
    assert cells["cases on the GPU, one process and several"] == (
        "55 of 55 pass; not: processes-2-mps; of other sources: table",
        "",
    )
    assert cells["sanitizers; planted faults"] == (f"{', '.join(page.TOOLS)} of other sources", "")
    for name in ("bfloat16 rows over float32, widths of 64 and more", page.LAYER):
        assert cells[name][0].endswith("; not whole") and cells[name][1] == ""
    assert cells["hidden share where transfer and sums take as long"][1] in ("yes", "**no**")
    written = "\n".join(page.section(folder, tmp_path / "docs" / "page.md"))
    assert "| table | passed, of other sources |" in written and "| overlap | passed |" in written


def test_figures_of_documents_without_measurements_are_not_measured(results):
    found = page.read(results[0])
    found["training-1"] = {
        "lines": [{"operation": "losses, halo", "dtype": "float32", "passed": 1, "cases": 1}]
    }
    found["overlap"]["cases"][0]["over_direct"] = {}
    said = figures(found)
    assert said["losses of 30 epochs against the CPU's, float32"] == "not measured"
    assert said["pipelines over direct where nothing is remote"] == "not measured"
    found["training-2"] = {"lines": [], "deviation": {"float32": 2e-6}}
    assert figures(found)["losses of 30 epochs against the CPU's, float32"] == "worst 2.0e-06"


def test_the_newest_run_comes_first(results, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PICTURES", ())
    kept = tmp_path / "benchmarks" / "gpu"
    older = page.keep(results[0], kept)
    for path in results[0].glob("*.json"):
        path.write_text(path.read_text().replace("2026-11-22", "2027-01-02"))
    assert page.keep(results[0], kept) != older
    said = page.text(kept, tmp_path / "docs" / "page.md")
    assert said.index("2027-01-02") < said.index("## NVIDIA H200, 2026-11-22")


def test_what_is_no_result_of_a_gpu_is_refused(results, tmp_path, capsys):
    folder = results[0]
    kept, written = tmp_path / "kept", tmp_path / "page.md"

    def refused():
        assert page.main([str(folder)], kept, written) == 2
        assert not kept.exists() and not written.exists()
        return capsys.readouterr().err.removeprefix("gpu-results: ").strip()

    shim = json.loads((folder / "huge.json").read_text()) | {"device": {"name": "shim"}}
    (folder / "huge.json").write_text(json.dumps(shim))
    assert refused() == "results of the shim, or none: the page is for those of a GPU"
    other = shim | {"device": GPU | {"name": "NVIDIA A100"}}
    (folder / "huge.json").write_text(json.dumps(other))
    assert refused() == "results of several GPUs: NVIDIA A100, NVIDIA H200"
    (folder / "huge.json").write_text('{"format": "other"}')
    assert refused().startswith(
        f"{folder / 'huge.json'}: not a result of gpu-test or gpu-bench (its format is 'other')"
    )


def test_the_page_in_docs_is_what_its_results_say():
    assert page.PAGE.read_text() == page.text(page.KEPT, page.PAGE)
