"""Results of the benchmarks as tables: text for the terminal, Markdown for pages. One function a table."""

import json
import re
import statistics

NAMES = {
    "sgemm": "OpenBLAS sgemm, 2048 x 2048 x 2048",
    "textbook_eigen": "1. textbook Eigen",
    "preallocated_eigen": "2. Eigen, no temporaries",
    "queries_in_lanes": "3. plain loops, queries in lanes",
    "fast_forward": "4. vector types: the library's",
    "fast_forward_causal": "the library's, causal",
    "fast_forward_dropout": "the library's, dropout 0.1",
    "fast_forward_bias": "the library's, a bias of every head",
    "dense_eigen": "dense Eigen, scores preallocated",
    "onednn": "oneDNN matmul, softmax, matmul",
    "fast_backward": "the library's backward",
    "fast_backward_causal": "the library's backward, causal",
    "fast_backward_dropout": "the library's backward, dropout 0.1",
    "fast_backward_bias": "the library's backward, a bias of every head",
}
NAMES_IN_DOUBLE = {
    "dgemm": "OpenBLAS dgemm, 2048 x 2048 x 2048",
    "double_forward": "the library's",
    "double_forward_causal": "the library's, causal",
    "double_forward_bias": "the library's, a bias of every head",
    "double_backward": "the library's backward",
    "double_backward_causal": "the library's backward, causal",
    "double_backward_bias": "the library's backward, a bias of every head",
}

# Kinds of processors: an instruction set of the library, and its name on the pages.
KINDS = {"avx512": "AVX-512", "avx2": "AVX2", "x86-64": "SSE2", "neon": "NEON", "generic": "another"}

PARTITIONS = ("ring", "ulysses", "hybrid", "all-gather")


def rounded(value, digits=5):
    """Floats with `digits` significant digits: stored files stay short."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list) else value


def dumped(results):
    """JSON; a row of a table is one line of it."""
    text = json.dumps(results, indent=1)
    return re.sub(r"{[^{}]*}", lambda row: re.sub(r"\n *", " ", row[0]), text) + "\n"


def quartiles(values):
    """[quartile, median, quartile]; of up to three values [smallest, median, largest]."""
    values = sorted(values)
    if len(values) < 4:
        return [values[0], statistics.median(values), values[-1]]
    return statistics.quantiles(values, n=4, method="inclusive")


def spread(figure):
    """Half the distance of the quartiles, in percent of the median."""
    return 50 * (figure[2] - figure[0]) / figure[1]


def milliseconds(figure):
    return f"{1e3 * figure[1]:.1f} ±{1e3 * (figure[2] - figure[0]) / 2:.1f}"


def mib(count):
    return f"{count / 2**20:.1f}"


def find(rows, **wanted):
    """The one row with these values, or None."""
    for row in rows:
        if all(row[name] == value for name, value in wanted.items()):
            return row
    return None


def attention_table(rows, names, gemm):
    """A line for each subject and length, a column for each D and number of threads."""
    columns = sorted({(row["dim"], row["threads"]) for row in rows})
    yield ["S", f"GFLOP/s, and % of {gemm}"] + [f"D {dim}, {threads} thread{'s'[:threads - 1]}" for dim, threads in columns]
    for seq in sorted({row["seq"] for row in rows}):
        for what, name in names.items():
            cells = [find(rows, what=what, seq=seq, dim=dim, threads=threads) for dim, threads in columns]
            if any(cells):
                yield [str(seq), name] + [speed(cell) for cell in cells]


def speed(row):
    if row is None:
        return ""
    share = "" if row["of_gemm"] is None or row["what"] in ("sgemm", "dgemm") else f", {100 * row['of_gemm']:.0f} %"
    return f"{row['gflops'][1]:.0f} ±{spread(row['gflops']):.0f} %{share}"


def ring_table(rows, base):
    """Times of a ring; base(row) is the last column."""
    yield ["ranks", "S", "placement", "transport", "ms", "exposed wait, ms", "relative to 1 rank, per core"]
    for row in rows:
        yield [str(row["ranks"]), str(row["seq"]), row["placement"], row["transport"], milliseconds(row["seconds"]),
               milliseconds(row["exposed_seconds"]), base(row)]


def against_one_rank(rows, cores):
    """The time relative to that of one rank for the same work, on as many cores as the ranks can use."""
    def work(row):
        return row["seq"] ** 2 * row["heads"]
    one = find(rows, ranks=1)

    def share(row):
        ideal = one["seconds"][1] * work(row) / work(one) / min(row["ranks"], cores)
        return f"{row['seconds'][1] / ideal:.2f}"
    return share


def partitions_table(part):
    """A line for each pass and number of ranks, a column for each partition: the time, and its ratio to the ring's. Last:
    the partition that `--parallel auto` takes by the cost model, and its time relative to the fastest's."""
    rows, auto = part["rows"], part.get("auto", {})
    yield ["pass", "ranks", *(f"{name}, ms" for name in PARTITIONS), "auto; its time / the fastest's"]
    for which in ("forward", "backward"):
        for ranks in sorted({row["ranks"] for row in rows}):
            seconds = {row["transport"]: row["seconds"] for row in rows if (row["pass"], row["ranks"]) == (which, ranks)}
            taken = auto.get(str(ranks))
            loss = seconds[taken][1] / min(median for _, median, _ in seconds.values()) if taken else None
            yield [which, str(ranks), *(f"{milliseconds(seconds[name])}, {seconds[name][1] / seconds['ring'][1]:.2f}"
                                        if name in seconds else "" for name in PARTITIONS),
                   f"{taken}; {loss:.2f}" if taken else ""]


def six_shards(row):
    """Bytes."""
    return 6 * 4 * row["heads"] * -(-row["seq"] // row["ranks"]) * row["dim"]


def memory_table(results):
    yield ["ranks", "S", "six shards, MiB", "tensors of a rank, MiB", "of the six shards", "process, MiB", "seconds"]
    for row in [*results["memory"]["growth"], results["memory"]["long"]]:
        shards = six_shards(row)
        yield [str(row["ranks"]), str(row["seq"]), mib(shards), mib(row["tensor_bytes"]),
               f"{row['tensor_bytes'] / shards:.2f}", mib(row["process_bytes"]), f"{row['seconds'][1]:.1f}"]


def of_type(results, dtype):
    """PyTorch's rows; the oldest results have float32 only and do not say so."""
    return [row for row in (results.get("pytorch") or {}).get("rows", []) if row.get("type", "float32") == dtype]


def pytorch_table(rows):
    yield ["what", "mask", "D", "threads", "ours, ms", "PyTorch, ms", "PyTorch / ours"]
    for row in rows:
        what = "forward" if row["what"] == "forward" else "forward + backward"
        yield [what, row["mask"], str(row["dim"]), str(row["threads"]), milliseconds(row["ours"]),
               milliseconds(row["torch"]), f"{row['ratio']:.2f}"]


# The least that is asked of an instruction set, by head dim or type. Nothing is asked of a set that is not here.
GOALS = {
    "avx512": {"forward": {64: 0.92, 128: 0.88}, "forward in double": {64: 0.80, 128: 0.85}, "causal": 0.92,
               "backward": 0.75, "backward in double": {64: 0.80, 128: 0.85},
               "PyTorch": {"float32": 1.2, "float64": 1.0}},
    "avx2": {"forward": {64: 0.90, 128: 0.90}, "forward in double": {64: 0.80, 128: 0.85}, "causal": 0.93,
             "backward": 0.90, "backward in double": {64: 0.85, 128: 0.85},
             "PyTorch": {"float32": 1.0, "float64": 1.0}},
}


def isa_of(results):
    return (results.get("attention") or {}).get("isa", "avx512")


def least(results, what, which=None):
    """`at least 0.90`, or nothing."""
    asked = GOALS.get(isa_of(results), {}).get(what)
    asked = asked[which] if isinstance(asked, dict) else asked
    return f"at least {asked:.2f}" if asked else ""


def goals(results):
    """The goals of the project for the instruction set of the results: measured figure and goal."""
    yield ["goal", "measured", "asked"]
    rows = (results.get("attention") or {}).get("rows") or []

    def speed(what, dim, threads=1):
        row = find(rows, what=what, seq=4096, dim=dim, threads=threads)
        return row and row["gflops"][1]

    def ratio(name, above, below, asked):
        if above and below:
            yield [name, f"{above / below:.3f}", asked]
    for dim in (64, 128):
        yield from ratio(f"forward / sgemm, D {dim}", speed("fast_forward", dim), speed("sgemm", dim),
                         least(results, "forward", dim))
        yield from ratio(f"forward / sgemm, D {dim}, 2 threads", speed("fast_forward", dim, 2), speed("sgemm", dim, 2), "at least 0.90")
        yield from ratio(f"causal / full, D {dim}", speed("fast_forward_causal", dim), speed("fast_forward", dim),
                         least(results, "causal"))
        yield from ratio(f"backward / sgemm, D {dim}", speed("fast_backward", dim), speed("sgemm", dim),
                         least(results, "backward"))
    for threads in (1, 2):
        for what in ("forward", "backward"):
            plain, words = speed(f"fast_{what}", 64, threads), f"/ without, D 64, {threads} thread(s)"
            yield from ratio(f"{what} with dropout {words}", speed(f"fast_{what}_dropout", 64, threads), plain, "at least 0.87")
            bias, memory = speed(f"fast_{what}_bias", 64, threads), speed(f"bias_memory_{what}", 64, threads)
            yield from ratio(f"{what} with bias {words}", bias, plain, "")
            if bias and memory:  # seconds are the inverse of these
                yield from ratio("the same less its memory", 1 / (1 / bias - 1 / memory), plain, "at least 0.80")
    for dim in (64, 128):
        for threads in (1, 2):
            for what in ("forward", "backward"):
                yield from ratio(f"{what} in double / dgemm, D {dim}, {threads} thread(s)", speed(f"double_{what}", dim, threads),
                                 speed("dgemm", dim, threads), least(results, f"{what} in double", dim))
    for dtype in ("float32", "float64"):
        for row in of_type(results, dtype):
            if row["mask"] == "full":
                yield [f"PyTorch / ours, {dtype}, {row['what']}, D {row['dim']}, {row['threads']} thread(s)",
                       f"{row['ratio']:.2f}", least(results, "PyTorch", dtype)]

    def seconds(part, **which):
        row = find((results.get("ring") or {}).get(part, []), transport="overlapped", **which)
        return row and row["seconds"][1]
    one, two, eight = (seconds("strong", ranks=n) for n in (1, 2, 8))
    yield from ratio("2 ranks / half of 1 rank", two, one and one / 2, "at most 1.03")
    yield from ratio("8 ranks / 2 ranks", eight, two, "at most 1.25")
    one = seconds("causal", ranks=1)
    for placement, asked in (("zigzag", "at most 1.05"), ("contiguous", "")):
        yield from ratio(f"causal, {placement}, 2 ranks / half of 1 rank", seconds("causal", ranks=2, placement=placement),
                         one and one / 2, asked)
    ring, ulysses = (find((results.get("partitions") or {}).get("rows", []), ranks=2, transport=name, **{"pass": "forward"})
                     for name in ("ring", "ulysses"))
    if ring and ulysses:
        yield from ratio("Ulysses / ring, 2 ranks", ulysses["seconds"][1], ring["seconds"][1], "at most 1.10")
    if results.get("memory"):
        row = results["memory"]["long"]
        yield [f"tensors / six shards, S {row['seq']}, {row['ranks']} ranks",
               f"{row['tensor_bytes'] / six_shards(row):.3f}", "at most 1.10"]


def dates(results):
    """When the parts were measured."""
    first = results.get("since", results["date"])
    return results["date"] if first == results["date"] else f"{first} to {results['date']}"


def machine_line(results):
    machine = results["machine"]
    attention = results.get("attention") or {}
    words = [machine["name"], f"{machine['cores']} cores", machine["system"]]
    words += [attention[name] for name in ("isa", "peers") if attention.get(name)]
    if results.get("pytorch"):
        words.append("PyTorch " + results["pytorch"]["version"])
    return ", ".join(words) + "; " + dates(results) + (" (--quick: figures mean little)" if results["quick"] else "")


def usual_length(rows):
    """4096, or the longest that was measured."""
    lengths = {row["seq"] for row in rows}
    return 4096 if 4096 in lengths else max(lengths)


def kind_of(results):
    """`AVX-512`, or `AVX2 code` on a processor that has more."""
    isa = isa_of(results)
    code = " code" if (results.get("attention") or {}).get("machine_isa", isa) != isa else ""
    return KINDS.get(isa, isa) + code


def where(results):
    """The machine of a column."""
    machine = results["machine"]
    words = [machine["name"], f"{machine['cores']} cores"] + [machine[name] for name in ("caches",) if machine.get(name)]
    if "load" in machine:
        words.append(f"load before {machine['load']}")
    peers = (results.get("attention") or {}).get("peers")
    return ", ".join(words + [peers] * bool(peers)) + "; " + dates(results)


def kinds_table(kinds):
    """A line for each subject, length, D and number of threads, a column for each kind of processor."""
    subjects = [("fast_forward", "forward"), ("fast_forward_causal", "forward, causal"),
                ("fast_backward", "backward"), ("fast_backward_causal", "backward, causal")]
    subjects += [(f"double_{what}", f"{what}, float64") for what in ("forward", "backward")]
    yield ["what", "S", "D", "threads", *(kind_of(results) for results in kinds)]
    for seq, threads in ((4096, 1), (4096, 2), (16384, 2)):
        for what, name in subjects:
            for dim in (64, 128):
                cells = [find(results["attention"]["rows"], what=what, seq=seq, dim=dim, threads=threads) for results in kinds]
                if any(cells):
                    yield [name, str(seq), str(dim), str(threads), *map(speed, cells)]


def torch_over_ours(kinds):
    """A line for each case, a column for each kind of processor, and the geometric mean."""
    kinds = [results for results in kinds if results.get("pytorch")]
    yield ["type", "what", "mask", "D", "threads", *(kind_of(results) for results in kinds)]
    names = ("type", "what", "mask", "dim", "threads")
    cases = {tuple(row.get(name, "float32") for name in names): None for results in kinds for row in results["pytorch"]["rows"]}
    for case in cases:
        cells = [find([row | {"type": row.get("type", "float32")} for row in results["pytorch"]["rows"]], **dict(zip(names, case)))
                 for results in kinds]
        yield [case[0], "forward" if case[1] == "forward" else "forward + backward", *map(str, case[2:]),
               *(f"{cell['ratio']:.2f}" if cell else "" for cell in cells)]
    yield ["geometric mean", "", "", "", "",
           *(f"{statistics.geometric_mean(row['ratio'] for row in results['pytorch']['rows']):.2f}" for results in kinds)]


def summary(results, kinds):
    """The table of the first page: a column for each kind of processor, then lines of one machine."""
    yield ["what", *(f"{kind_of(kind)}: {kind['machine']['name']}" for kind in kinds)]

    def shares(kind, prefix):
        rows = kind["attention"]["rows"]
        found = [find(rows, what=f"{prefix}_{what}", seq=usual_length(rows), dim=128, threads=1) for what in ("forward", "backward")]
        return ", ".join(f"{row['gflops'][1]:.0f}" + (f" ({100 * row['of_gemm']:.0f} %)" if row["of_gemm"] else "")
                         for row in found if row)
    yield ["forward, backward; S = 4096, D = 128, float32, one thread: GFLOP/s (of OpenBLAS's sgemm)",
           *(shares(kind, "fast") for kind in kinds)]
    ratios = [[row["ratio"] for row in (kind.get("pytorch") or {}).get("rows", [])] for kind in kinds]
    if any(ratios):
        yield [f"PyTorch's time / ours, {max(map(len, ratios))} cases: range, geometric mean",
               *(f"{min(some):.2f} to {max(some):.2f}, {statistics.geometric_mean(some):.2f}" if some else "" for some in ratios)]
    for line in summary_of_ring(results):
        yield line + [""] * (len(kinds) - 1)


def summary_of_ring(results):
    cores = results["machine"]["cores"]
    cost = "slowdown against perfect scaling (1.00 = perfect)"
    for name, part, label in (("ring", "strong", "ranks"), ("causal ring, two ranks", "causal", "placement")):
        rows = (results.get("ring") or {}).get(part, [])
        shown = [row for row in rows if row["transport"] == "overlapped" and row["ranks"] > 1
                 and (part == "strong" or row["ranks"] == 2)]
        if shown:
            share = against_one_rank(rows, cores)
            yield [f"{name}: {cost}", ", ".join(f"{row[label]}{' ranks' * (part == 'strong')} {share(row)}" for row in shown)]
    if results.get("memory"):
        row = results["memory"]["long"]
        yield [f"tensors of a rank, S = {row['seq']}, {row['ranks']} ranks, one head of D = {row['dim']}",
               f"{mib(row['tensor_bytes'])} MiB, {row['tensor_bytes'] / six_shards(row):.2f} of six shards"]


def all_tables(results):
    """(heading, what it shows, rows) of each table that there are figures for."""
    rows = (results.get("attention") or {}).get("rows")
    if rows:
        yield ("One device", "4 heads (one from 16384 tokens on), float32; medians, ± half the "
               "interquartile range. 4 S² D H operations forward, 10 backward, without the pairs that the mask hides.",
               attention_table([row for row in rows if row["what"] in NAMES], NAMES, "sgemm"))
    if in_double := [row for row in rows or [] if row["what"] in NAMES_IN_DOUBLE]:
        yield ("One device, float64", "The same in double.", attention_table(in_double, NAMES_IN_DOUBLE, "dgemm"))
    cores = results["machine"]["cores"]
    titles = {"strong": "Ring, the same problem on more ranks", "causal": "Ring, causal",
              "backward": "Ring backward, the same problem on more ranks", "weak": "Ring, tokens and ranks growing together"}
    for name, heading in titles.items():
        if rows := (results.get("ring") or {}).get(name):
            one = "(time of one rank * the ratio of S²)" if name == "weak" else "time of one rank"
            yield (heading, f"{'Backward' if name == 'backward' else 'Forward'}, H = {rows[0]['heads']}, "
                   f"D = {rows[0]['dim']}, float32, one thread per rank, {cores} cores. Last column: slowdown against perfect scaling, "
                   f"time * min(ranks, cores) / {one} (1.00 = perfect).",
                   ring_table(rows, against_one_rank(rows, cores)))
    if part := results.get("partitions"):
        rows = part["rows"]
        yield ("Ring, Ulysses, hybrid and all-gather",
               f"Measured on {part['measured']}. {part['how']}, all arguments in host memory. S = {rows[0]['seq']}, "
               f"H = {rows[0]['heads']}, D = {rows[0]['dim']}, float32, one thread per rank; 4 ranks share the cores. Hybrid: two ranks "
               "share the heads, rings of two. Each time is followed by its ratio to the ring's.", partitions_table(part))
    if results.get("memory"):
        yield ("Memory of a rank", "H = 1, D = 64, float32. Six shards: q, out, the current and the incoming K,V.",
               memory_table(results))
    yield from pytorch_tables(results)


def pytorch_tables(results):
    for dtype, heading, agreement in (("float32", "PyTorch", "1e-3"), ("float64", "PyTorch, float64", "1e-12")):
        if rows := of_type(results, dtype):
            place = results["pytorch"].get("measured")
            yield (heading, (f"Measured on {place}. " if place else "") + "`scaled_dot_product_attention` on the CPU, "
                   f"S = {rows[0]['seq']}, H = {rows[0]['heads']}, {dtype}, "
                   f"the same arrays and threads, in turn; results agree within {agreement}. Last column: the median of the ratios.",
                   pytorch_table(rows))


def in_columns(rows):
    """A line of text for each row."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def text(results):
    """For the terminal."""
    blocks = [machine_line(results)]
    of_goals = ("Goals", f"Of {isa_of(results)}, on a machine with nothing else running.", goals(results))
    for heading, note, rows in [*all_tables(results), of_goals]:
        blocks.append("\n".join([heading, "-" * len(heading), note.replace("`", ""), *in_columns(list(rows))]))
    return "\n\n".join(blocks) + "\n"


def markdown_rows(rows):
    rows = list(rows)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
