"""Writes the results of the benchmarks into the pages: docs/results.md, README.md, lesson 03's LADDER.md and its pictures.

    report.py [RESULTS.json]    RESULTS becomes tests/benchmarks/results/<machine>.json; then the pages are written.
                                A part that it lacks (bench.py --only) stays as it is stored
    report.py --check           writes nothing; fails unless the pages are what this makes of the stored results

The pages show the newest stored file of a machine's best instruction set, and a column for the newest of each
instruction set (bench.py --isa), each between two markers.
"""

import json
import os
import re
import sys
from pathlib import Path

import pictures
import tables

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
STORED = SOURCE / "tests/benchmarks/results"
LADDER = SOURCE / "lessons/03_blockwise_attention"
KINDS = ("The library by the instruction set of the processor: GFLOP/s, half the interquartile range, and the share of OpenBLAS's "
         "product of matrices in the same type, on the same number of threads, in the same run. 4 heads, one at S = 16384. "
         "\"Code\": the kernels of an older processor, on one that has more. One thread by its CPU time, two by the clock.")
BEGIN, END = "<!-- benchmarks:begin, by tests/benchmarks/report.py -->", "<!-- benchmarks:end -->"


def between(path, now):
    """The page with `now` between its markers."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{path} lacks the markers {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{now}\n{END}{rest.split(END)[1]}"


def readme(results, kinds):
    machine = results["machine"]
    return (f"Rings and memory on {machine['name']}, {machine['cores']} cores; {tables.dates(results)}; [all tables](docs/results.md):"
            "\n\n" + tables.markdown_rows(tables.summary(results, kinds)))


def everything(results, kinds):
    blocks = ["### Kinds of processors", KINDS, "\n".join(f"- {tables.kind_of(kind)}: {tables.where(kind)}" for kind in kinds),
              tables.markdown_rows(tables.kinds_table(kinds))]
    measured = " ".join(f"{tables.kind_of(kind)}: {kind['pytorch'].get('measured', '')}." for kind in kinds if kind["pytorch"])
    blocks += ["PyTorch's time / ours, medians of the ratios, S = 4096, H = 4. " + measured,
               tables.markdown_rows(tables.torch_over_ours(kinds)),
               f"The tables below were measured on {tables.machine_line(results)}."]
    for heading, note, rows in tables.all_tables(results):
        blocks += [f"### {heading}", note, tables.markdown_rows(rows)]
    return "\n\n".join(blocks)


def ladder(results):
    """The steps alone, at S = 4096 or what was measured, on one thread."""
    rows = results["attention"]["rows"]
    seq = tables.usual_length(rows)
    lines = [["step", "D = 64, GFLOP/s", "of sgemm", "D = 128, GFLOP/s", "of sgemm"]]
    for what in (*pictures.STEPS, "dense_eigen", "onednn", "sgemm"):
        found = [tables.find(rows, what=what, seq=seq, dim=dim, threads=1) for dim in (64, 128)]
        if not all(found):
            continue
        cells = [tables.NAMES[what]]
        for row in found:
            share = "" if row["of_gemm"] is None else f"{100 * row['of_gemm']:.0f} %"
            cells += [f"{row['gflops'][1]:.0f} ±{tables.spread(row['gflops']):.0f} %", share]
        lines.append(cells)
    return (f"{tables.machine_line(results)}. S = {seq}, 4 heads, one thread, medians:\n\n"
            + tables.markdown_rows(lines))


def pages():
    """{path: text}"""
    files = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(STORED.glob("*.json"))]
    best = [results for results in files if "isa" not in results]
    if not best:
        sys.exit(f"nothing is stored in {STORED}: run make bench, then {Path(__file__).name} RESULTS.json")
    results = max(best, key=lambda one: one["date"])
    kinds = []
    for isa in tables.KINDS:
        some = sorted((one for one in files if one.get("attention") and tables.isa_of(one) == isa), key=lambda one: one["date"])
        parts = [one["pytorch"] for one in some if one.get("pytorch")]
        kinds += [one | {"pytorch": parts[-1] if parts else None} for one in some[-1:]]
    return {SOURCE / "README.md": between(SOURCE / "README.md", readme(results, kinds)),
            SOURCE / "docs/results.md": between(SOURCE / "docs/results.md", everything(results, kinds)),
            LADDER / "LADDER.md": between(LADDER / "LADDER.md", ladder(results)),
            LADDER / "ladder.svg": pictures.ladder(results),
            LADDER / "roofline.svg": pictures.roofline(results)}


def store(path):
    results = json.loads(Path(path).read_text(encoding="utf-8"))
    machine = results["machine"]
    words = f"{machine['name']} {machine['cores']} cores {machine['system']} {results.get('isa', '')}".lower()
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", words)).strip("-")
    STORED.mkdir(exist_ok=True)
    file = STORED / f"{name}.json"
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if kept := set(before) - set(results) - {"since"}:
            results = before | results | {"since": before.get("since", before["date"])}
            print(f"as before: {', '.join(sorted(kept))}")
    file.write_text(tables.dumped(results), encoding="utf-8")
    print(f"stored as tests/benchmarks/results/{name}.json")


def main():
    arguments = sys.argv[1:]
    if arguments and arguments != ["--check"]:
        store(arguments[0])
    stale = [path for path, text in pages().items()
             if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        if stale:
            sys.exit("not what the stored results give: " + ", ".join(map(str, stale)) + f"; run {Path(__file__).name}")
        print("the pages are what the stored results give")
        return
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    print("written: " + (", ".join(str(path.relative_to(SOURCE)) for path in stale) or "nothing new"))


if __name__ == "__main__":
    main()
