"""The pages show the stored results, and report.py detects when they do not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import tables

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
PAGES = ("README.md", "docs/results.md", "lessons/03_blockwise_attention/LADDER.md", "lessons/03_blockwise_attention/ladder.svg",
         "lessons/03_blockwise_attention/roofline.svg")


def report(source, *arguments):
    """Its exit code."""
    command = [sys.executable, SOURCE / "tests/benchmarks/report.py", *arguments]
    return subprocess.run(command, env={**os.environ, "RING_ATTENTION_SOURCE": str(source)}).returncode


def test_report(tmp_path):
    assert report(SOURCE, "--check") == 0, "the pages are what the stored results give"
    copy = tmp_path
    for page in PAGES:
        (copy / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / page, copy / page)
    shutil.copytree(SOURCE / "tests/benchmarks/results", copy / "tests/benchmarks/results")
    before = [(copy / page).read_text(encoding="utf-8") for page in PAGES]
    assert report(copy) == 0
    assert before == [(copy / page).read_text(encoding="utf-8") for page in PAGES], "writing them again changes nothing"

    files = [json.loads(file.read_text(encoding="utf-8")) for file in (SOURCE / "tests/benchmarks/results").glob("*.json")]
    stored = next(results for results in files if "isa" not in results)
    for isa, asked in (("avx512", {"at least 0.75"}), ("avx2", {"at least 0.90"}), ("neon", {""})):
        of_isa = {**stored, "attention": {**stored["attention"], "isa": isa}}
        found = {row[2] for row in tables.goals(of_isa) if row[0].startswith("backward / sgemm")}
        assert found == asked, f"the goals of {isa} are its own"

    # Another machine's results, newer, without a single peer, PyTorch or ring.
    rows = [row | {"of_gemm": None} for row in stored["attention"]["rows"] if row["what"] not in ("sgemm", "onednn")]
    other = {"machine": {"name": "An Other (R)", "cores": 4, "system": "Darwin arm64"}, "date": "2999-12-31",
             "quick": False, "attention": {"isa": "neon", "peers": "", "rows": rows}, "pytorch": None}
    (copy / "other.json").write_text(json.dumps(other), encoding="utf-8")
    assert report(copy, "--check") == 0 and report(copy, copy / "other.json") == 0
    assert (copy / "tests/benchmarks/results/an-other-4-cores-darwin-arm64.json").exists()
    assert all("An Other" in (copy / page).read_text(encoding="utf-8") for page in PAGES[:3]), "newer results replace older ones"

    part = {"machine": other["machine"], "date": "3000-01-01", "quick": False, "pytorch": stored["pytorch"]}
    (copy / "part.json").write_text(json.dumps(part), encoding="utf-8")
    code, page = report(copy, copy / "part.json"), (copy / PAGES[1]).read_text(encoding="utf-8")
    assert code == 0, "a part alone replaces that part, and the page says both dates"
    assert all(words in page for words in ("2999-12-31 to 3000-01-01", "library's, causal", "PyTorch / ours"))

    for page in PAGES[:2]:
        right = (copy / page).read_text(encoding="utf-8")
        for flaw, what in ((right.replace("An Other", "Another"), "a figure changed by hand is noticed"),
                           (right.replace("<!-- benchmarks:end -->", ""), "a page without a marker is noticed")):
            (copy / page).write_text(flaw, encoding="utf-8")
            assert report(copy, "--check") != 0, f"{page}: {what}"
        (copy / page).write_text(right, encoding="utf-8")
