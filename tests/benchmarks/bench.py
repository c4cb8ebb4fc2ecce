"""Runs the benchmarks, writes build/release/benchmarks/results.json, and prints one table.

    bench.py [--quick] [--seq 1024,4096] [--dim 64] [--threads 1] [--only attention,ring,partitions,memory,pytorch]
             [--isa avx2] [--python PYTHON] [--out FILE]

About a quarter of an hour on two cores; --quick takes less than one, for tests only. What is compared runs alternately in one
run, so that ratios do not depend on changes of the clock. Figures are [quartile, median, quartile]. --isa measures the
library's engines and their peers with the instructions of an older processor.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tables

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))
PROGRAMS = BUILD / "tests/benchmarks"

# Threads of a library that wait for work by spinning would take a core from the next measurement.
POLITE = {"OPENBLAS_THREAD_TIMEOUT": "18", "OMP_WAIT_POLICY": "passive"}


def say(text):
    print(text, flush=True)


def run(command, timeout=900, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


# The cores and instruction sets that the peers take for that of --isa.
PEERS = {"avx2": {"OPENBLAS_CORETYPE": "Haswell", "DNNL_MAX_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",
                  "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
         "x86-64": {"OPENBLAS_CORETYPE": "Core2", "DNNL_MAX_CPU_ISA": "SSE41", "ONEDNN_MAX_CPU_ISA": "SSE41",
                    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ATEN_CPU_CAPABILITY": "default"}}


def caches():
    """`L1d 32 KiB, L2 1024 KiB`, of the first core, where Linux says so."""
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            found.append(f"L{level}{'d' if kind == 'Data' else ''} {size.replace('K', ' KiB')}")
    return ", ".join(found)


def machine():
    """The name of the processor, the cores, the caches, the system, and how busy it was before."""
    name = platform.processor() or platform.machine()
    if sys.platform == "darwin":
        name = run(["sysctl", "-n", "machdep.cpu.brand_string"]).strip()
    elif Path("/proc/cpuinfo").exists():
        found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[::-1])
        name = found.get("model name", name)
        if "model" in found:
            name += f", family {found.get('cpu family', '?')} model {found['model']}"
    return {"name": name, "cores": os.cpu_count(), "caches": caches(), "load": round(os.getloadavg()[0], 1),
            "system": f"{platform.system()} {platform.machine()}"}


def measured():
    """Where and when: for a part that may be stored beside those of another machine."""
    here = machine()
    return f"{here['name']}, {here['cores']} cores; {datetime.date.today().isoformat()}"


def environment_of_peers(options):
    """Their core and instruction set. OpenBLAS 0.3.21 takes SSE kernels on an AVX-512 processor that is newer than itself:
    it is told better."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    best = {"OPENBLAS_CORETYPE": "SkylakeX"} if "avx512dq" in flags else {}
    told = PEERS.get(options.isa, best)
    if options.isa == "avx2" and "AuthenticAMD" in flags:
        told = told | {"OPENBLAS_CORETYPE": "Zen"}
    return {name: os.environ.get(name, value) for name, value in told.items()}


def attention(options):
    """The ladder, the backward, both in double, and the peers; a group shares S, D and threads, and is interleaved."""
    program = PROGRAMS / "benchmark_attention"
    if not program.exists():
        say("without Google Benchmark: the ladder and its peers are left out")
        return {"rows": []}
    rows, context = [], {}
    isa = ["--isa", options.isa] if options.isa else []
    some = "(fast|double)_(forward|backward)(_causal)?|onednn" if isa else ".*"
    for seq in options.seq:
        for dim in options.dim:
            for threads in options.threads:
                repetitions = 3 if options.quick or seq >= 16384 else 7
                say(f"attention: S {seq}, D {dim}, {threads} thread(s), {repetitions} times")
                gemm = "sgemm|dgemm|copy" if dim == 64 else "sgemm|dgemm"
                with tempfile.NamedTemporaryFile() as out:
                    run([program, *isa, f"--benchmark_filter=^({gemm}|({some})/S:{seq}/D:{dim})/T:{threads}/",
                         f"--benchmark_repetitions={repetitions}", "--benchmark_enable_random_interleaving=true",
                         f"--benchmark_min_time={0.01 if options.quick else 0.05}",
                         f"--benchmark_out={out.name}", "--benchmark_out_format=json"], **POLITE, **environment_of_peers(options))
                    report = json.load(open(out.name, encoding="utf-8"))
                context = report["context"]
                rows += group(report, seq, dim, threads)
    say("peers: " + (context.get("peers") or "neither OpenBLAS nor oneDNN was found when this was built"))
    return {"isa": context.get("isa"), "machine_isa": context.get("machine_isa"), "peers": context.get("peers"), "rows": rows}


def group(report, seq, dim, threads):
    """One thread by its CPU time, which other programs on the machine disturb less than the time on the clock."""
    speeds, time = {}, "cpu_time" if threads == 1 else "real_time"
    for entry in report["benchmarks"]:
        if entry.get("error_occurred"):
            sys.exit(f"{entry['name']}: {entry['error_message']}")
        if entry["run_type"] == "iteration":
            gflops = entry["flop"] / (entry[time] * 1e-3) / 1e9  # milliseconds
            speeds.setdefault(entry["name"].split("/")[0], []).append(gflops)

    def share(what):
        """Of OpenBLAS's product of matrices in the same type."""
        gemm = speeds.get("dgemm" if what in tables.NAMES_IN_DOUBLE else "sgemm")
        return statistics.median(speeds[what]) / statistics.median(gemm) if gemm else None
    return [{"what": what, "seq": seq, "dim": dim, "threads": threads, "gflops": tables.quartiles(values),
             "of_gemm": share(what)} for what, values in sorted(speeds.items())]


def program(ranks, verb, *words):
    """The report of `ring-attention verb`, one thread per rank."""
    return json.loads(run([MPIRUN, "-n", ranks, BUILD / "ring-attention", verb, *words, "--threads", 1, "--json"]))


def in_turn(repetitions, jobs, samples_of):
    """Rows with quartiles of the figures that samples_of(*job) yields, as pairs (names of a row, figures).

    The jobs take turns, so that other load of the machine disturbs all of them.
    """
    figures, rows = {}, {}
    for _ in range(repetitions):
        for job in jobs:
            for row, measured_now in samples_of(*job):
                rows[str(row)] = row
                for name, value in measured_now.items():
                    figures.setdefault(str(row), {}).setdefault(name, []).append(value)
    return [row | {name: tables.quartiles(values) for name, values in figures[key].items()} for key, row in rows.items()]


def ring_times(ranks, seq, heads, *flags):
    """One sample of each placement and pass, after one that warms up."""
    report = program(ranks, "bench", "--seq", seq, "--heads", heads, "--dim", 64, "--repetitions", 1, *flags)
    for times in report["placements"]:
        yield ({"ranks": ranks, "seq": seq, "heads": heads, "dim": 64, "placement": times["placement"],
                "transport": report["transport"], "pass": times["pass"]},
               {"seconds": times["overlapped_seconds"], "exposed_seconds": times["exposed_seconds"]})


def ring(options):
    seq, heads, shard = (1024, 2, 256) if options.quick else (8192, 8, 2048)
    counts = (1, 2, 4, 8)
    odd_even = ("--transport", "odd-even")
    jobs = {"strong": [(n, seq, heads, "--backward") for n in counts] + [(n, seq, heads, *odd_even) for n in counts[1:]],
            "causal": [(n, seq, heads, "--causal") for n in counts],
            "weak": [(n, shard * n, heads // 2) for n in counts] + [(n, shard * n, heads // 2, *odd_even) for n in counts[1:]]}
    repetitions = 1 if options.quick else 3
    results = {}
    for name, some in jobs.items():
        say(f"ring, {name}: {len(some)} jobs on up to 8 ranks, {repetitions} times")
        rows = sorted(in_turn(repetitions, some, ring_times), key=lambda row: (row["ranks"], row["placement"], row["transport"]))
        results[name] = [row for row in rows if row["pass"] == "forward"]
        if name == "strong":
            results["backward"] = [row for row in rows if row["pass"] == "backward"]
    return results


def whole_times(ranks, seq, heads, partition):
    """One sample of a forward and of its backward."""
    flags = ("--ulysses", 2) if partition == "hybrid" else ()
    report = program(ranks, "run", "--random", f"1,{heads},{seq},64", "--backward", "--parallel", partition, *flags)
    for which in ("forward", "backward"):
        yield ({"ranks": ranks, "seq": seq, "heads": heads, "dim": 64, "transport": partition, "pass": which},
               {"seconds": report[f"{which}_seconds"]})


def partitions(options):
    """What `run` does in each partition, all in turn."""
    seq, heads = (1024, 4) if options.quick else (8192, 8)
    jobs = [(n, seq, heads, partition) for n in (2, 4) for partition in tables.PARTITIONS if n > 2 or partition != "hybrid"]
    say(f"partitions: {len(jobs)} jobs on up to 4 ranks")
    rows = in_turn(1 if options.quick else 5, jobs, whole_times)
    problem = ("--random", f"1,{heads},{seq},64", "--backward", "--parallel", "auto")
    auto = {str(ranks): program(ranks, "run", *problem)["parallel"] for ranks in (2, 4)}
    return {"measured": measured(), "how": "`ring-attention run`", "auto": auto, "rows": rows}


def memory(options):
    """A job of its own for each size: a process's peak never falls."""
    def peaks(ranks, seq):
        report = program(ranks, "run", "--random", f"1,1,{seq},64")
        return {"ranks": ranks, "seq": seq, "heads": 1, "dim": 64, "seconds": tables.quartiles([report["forward_seconds"]]),
                "tensor_bytes": report["tensor_bytes"], "process_bytes": report["process_bytes"]}
    shard, long = (1024, 8192) if options.quick else (4096, 131072)
    say(f"memory: {long} tokens on 4 ranks, and tokens and ranks growing together")
    return {"long": peaks(4, long), "growth": [peaks(n, n * shard) for n in (1, 2, 4, 8)]}


def python_with_torch(options):
    for python in [options.python] if options.python else [sys.executable, "python3"]:
        try:
            if subprocess.run([python, "-c", "import torch, numpy"], capture_output=True).returncode == 0:
                return python
        except OSError:
            continue
    return None


def pytorch(options):
    python = python_with_torch(options)
    if python is None:
        say("no Python with PyTorch and NumPy was found (--python names one): that comparison is left out")
        return None
    command = [python, Path(__file__).with_name("pytorch.py"), PROGRAMS / "benchmark_arrays"]
    if options.quick:
        command += ["--seq", "512", "--repetitions", "3"]
    if options.isa:
        command += ["--isa", options.isa]
    say("PyTorch: scaled_dot_product_attention, the same arrays")
    return {"measured": measured(), **json.loads(run(command, timeout=3600, **environment_of_peers(options)))}


PARTS = {"attention": attention, "ring": ring, "partitions": partitions, "memory": memory, "pytorch": pytorch}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small problems, to see that everything runs")
    numbers = {"seq": [1024, 4096, 16384], "dim": [64, 128], "threads": [1, 2]}
    for name, all_of_them in numbers.items():
        parser.add_argument(f"--{name}", type=lambda text: [int(word) for word in text.split(",")], default=all_of_them,
                            help=f"for the ladder and its peers: some of {all_of_them}")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--isa", choices=list(tables.KINDS), help="another instruction set than the best of this machine; "
                        "only for attention and pytorch")
    parser.add_argument("--python", default=os.environ.get("TORCH_PYTHON"), help="a Python that has torch and numpy")
    parser.add_argument("--out", type=Path, default=BUILD / "benchmarks/results.json")
    options = parser.parse_args()
    if options.quick:
        options.seq = [1024]
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only: no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for name, all_of_them in numbers.items():
        if not set(getattr(options, name)) <= set(all_of_them):
            parser.error(f"--{name}: some of {all_of_them}")

    if options.isa:
        options.only = [part for part in options.only if part in ("attention", "pytorch")]
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"note: the machine is busy (load {load:.1f}); the figures will be wrong")
    results = {"machine": machine(), "date": datetime.date.today().isoformat(), "quick": options.quick}
    if options.isa:
        results["isa"] = options.isa
    results.update({part: PARTS[part](options) for part in PARTS if part in options.only})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = tables.rounded(results)
    options.out.write_text(tables.dumped(results), encoding="utf-8")
    print("\n" + tables.text(results))
    say(f"written: {options.out}")


if __name__ == "__main__":
    main()
