"""The exercise of a lesson, as lessons/exercise.sh judges it: exercise_test.py NN [long].

- The judge makes a copy of the idea with holes, once, and says which hole of it is still empty.
- With a wrong line in the place of the right one the exercise fails, in words of its own. Without `long` one wrong line is
  tried, else each.
- `long`: with the lesson's idea in the place of the copy it passes.

Which lines of the ideas are in holes: ideas_test.py.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from expect import expect, finish

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
NUMBER, LONG = sys.argv[1], sys.argv[2:] == ["long"]
SLOWNESS = int(os.environ.get("RING_ATTENTION_SLOWNESS", "1"))

FROM_PREV_TO_NEXT = """ring.prev(), 0, comm.handle(),
                          &requests[0]));
      check_mpi(
          MPI_Isend(current.data(), length(owner), MPI_FLOAT, ring.next()"""
FROM_NEXT_TO_PREV = FROM_PREV_TO_NEXT.replace("prev", "PREV").replace("next", "prev").replace("PREV", "next")

# What a reader may well write: (in the idea, in its place, what the judge then says, and which mistake it names; from 05 on, if
# Python has NumPy). What it says is a check that fails, as it tells this mistake from the others; "FAIL" where the mistake is named. Of a
# kernel, 11a to 11e, it is a regular expression.
WRONG = {
    "01": [("m = std::max(m, x[i])", "m = x[i]", "m from -1e4, scores near -10200: l = 0, the row is lost",
            "m is the last score, not the largest"),
           ("l += term(x[i], m)", "l += std::exp(x[i] - m)", "all scores masked: p is 0", "l has no guard"),
           ("l != 0 ? term(x[i], m) / l", "l != 0 ? std::exp(x[i]) / l", "safe softmax of x, x - 1: the same bits for every x",
            "p is e^x / l, without m"),
           ("m = std::max(m, x[i])", "m = std::max(std::max(m, x[i]), T{0})", "FAIL", "m starts at 0")],
    "02": [("state.l * move(state.m, m)", "state.l", "lse agrees with Eigen in double: FAILED: beyond the tolerance",
            "l is not moved when the maximum grows"),
           ("state.l * move(state.m, m)", "state.l * move(m, m)", "FAIL", "l is not moved when the maximum grows, or m is updated before"),
           ("std::exp(from - to)", "std::exp(to - from)", "FAIL", "the sign: e^{to - from}"),
           ("from == negative_infinity<T> ? T{0} : ", "", "p agrees with Eigen in double: FAILED: got is not finite",
            "no guard: -inf - (-inf) is NaN"),
           ("+ factor(score, m)", "+ factor(score, state.m)", "in random order: the same l, but for rounding: inf",
            "the term of the new score has the old maximum"),
           ("b.l * factor(b.m, m)", "b.l", "a merged with b is b merged with a, to the bit",
            "the second l is not moved")],
    "03": [("keep * l + add", "l + add", "lse agrees with the dense reference in double: FAILED: beyond the tolerance",
            "l is not moved when the maximum grows, o is"),
           ("(choices.move_o ? keep : 1) * o[d]", "o[d]",
            "out agrees with the dense reference in double: FAILED: beyond the tolerance",
            "o is not moved when the maximum grows, l is"),
           ("    m = top;\n", "", "no tile skipped, with the guard: a masked tile changes no bit",
            "m is not updated"),
           ("m = std::max(m, s(a, b))", "m = s(a, b)", "lse agrees with the dense reference in double: FAILED: got is not finite",
            "m is the last score of the row")],
    "04": [("if (rank > 0) check_mpi", "if (rank > 1) check_mpi", "p sums to 1 over all ranks: 1.14", "rank 1 does not receive"),
           ("state = choices.update(state, local);", "state = local;", "p sums to 1 over all ranks: 7.07",
            "what a rank receives is not merged"),
           ("MPI_FLOAT, last, comm", "MPI_FLOAT, 0, comm", "p sums to 1 over all ranks: 8.06", "the root of the broadcast is rank 0"),
           ("MPI_Send(&state, 2", "MPI_Send(&state, 1", "messages of 8 bytes down the chain are N - 1: 3",
            "a message is one number: l stays behind"),
           ("if (rank < last) check_mpi", "if (rank + 1 < last) check_mpi", "deadlock")],
    "05": [("ring.rank % 2 == 0", "true", "deadlock"),
           ("std::swap(current, incoming);", "", "FAIL", "every step uses the rank's own K,V"),
           ("step < ring.steps(); ++step", "step + 1 < ring.steps(); ++step", "FAIL", "N - 1 steps"),
           ("next_owner = ring.owner(step + 1)", "next_owner = ring.owner(step)", "verdict: [rank 1] MPI: Message truncated")],
    "06": [("std::swap(current, incoming);", "", "FAIL", "every step uses the rank's own K,V"),
           ("step < ring.steps(); ++step", "step + 1 < ring.steps(); ++step", "FAIL", "N - 1 steps"),
           (FROM_PREV_TO_NEXT, FROM_NEXT_TO_PREV, "at step t rank r computes with the K,V of rank (r - t) mod N"),
           ("ring.prev(), 0", "ring.prev(), 1", "deadlock")],
    "07": [("ds(i, j) - delta[i]", "ds(i, j)", "FAIL", "no delta"),
           ("scale * ds * k", "ds * k", "FAIL", "dQ without the scale"),
           ("key_scale * ds.transpose()", "ds.transpose()", "FAIL", "dK without the scale")],
    "08": [("std::plus<>()", "std::minus<>()", "dK agrees with the dense reference in double: FAILED: beyond the tolerance; max 1.27"),
           ("std::plus<>()", "[](float, float part) { return part; }", "FAIL", "a step overwrites dK,dV"),
           ("    added.fill(0);\n", "", "FAIL", "the buffer of a step's dK,dV is not set to zero"),
           ("if (step < gradient_hops) start", "if (step + 1 < gradient_hops) start",
            "(0 when N = 1), bytes as derived: 3 and 3 hops")],
    "09": [("2 * n - 1 - r", "n + r", "zigzag: critical path over ideal is 1.000: 1.436"),
           ("key <= query", "key < query", "zigzag: the pairs are S (S + 1) / 2 in all"),
           ("i = r; i < seq; i += n", "i = r; i < seq; ++i", "striped: the tokens of every rank are the library's"),
           ("shard(Ring{r, n}.owner(t))", "shard(t)", "zigzag: critical path over ideal is 1.000: 1.027"),
           ("slowest = std::max(slowest, rank[step])", "slowest += rank[step]",
            "critical path of two ranks that both take 1, then 5: 6")],
    "10": [("held.push_back({heads[u], ", "held.push_back({heads[own], ",
            "U = 4, R = 1: all five agree with the dense reference in double: FAILED: shapes differ"),
           ("y, group.computed, group.held", "y, group.held, group.computed", "and the array does not have these"),
           ("  link.all_to_all(pieces);\n", "", "FAIL  U = 2, R = 2: bytes as derived: 0 and 0 by all-to-all"),
           ("slices[u]});", "slices[own]});", "q and its ranges have different numbers of tokens"),
           ("sum += *next++", "sum = *next++", "FAIL", "dK,dV are of the last query head of a group only")],
    "11a": [("    o[0] *= keep;\n    o[1] *= keep;\n", "", "must follow when m grows"),
            ("keep * l + warp_sum(p)", "l + warp_sum(p)", "l is not multiplied by exp"),
            ("l + warp_sum(p)", "l + p", "the sum over the lanes is missing"),
            ("rescale_from(top)", "top", "it sees no key of the first tile"),
            ("fmaxf(m, warp_max(s))", "warp_max(s)", "it must not fall below that of the tiles before")],
    "11b": [("g + 8 * (i % 2), first + 2 * t + 8 * (i / 2)", "g + 8 * (i / 2), first + 2 * t + 8 * (i % 2)",
             "are exchanged: a"),
            ("first + 2 * t + 8 * i)", "first + t + 8 * i)", "those of lane t begin at column 2t, not at t"),
            ("pair(a.k, g, first + 2 * t + 8 * i)", "pair(a.k, 2 * t + i, first + g)", "k is taken for B"),
            ("(g + 8 * (i / 2)) * 8 + 2 * t + i % 2", "(g + 8 * (i % 2)) * 8 + 2 * t + i / 2", "are exchanged: d")],
    "11c": [("    cuda::mbarrier_wait(full, static_cast<unsigned>(number % 2));\n", "",
             "a race, .* which wait, with which parity, comes before the reads?"),
            ("static_cast<unsigned>(number % 2)", "0", "a deadlock: all threads"),
            ("    __syncthreads();\n  }\n}", "  }\n}", "a race, .* What keeps the next load away"),
            ("(full, tile_bytes)", "(full, 128 * (a.keys - first < tile ? a.keys - first : tile))",
             "a deadlock: TMA counts all bytes of the box"),
            ("if (thread == 0) {\n      cuda::mbarrier_arrive", "{\n      cuda::mbarrier_arrive", "for one arrival in a phase")],
    "11d": [("    cuda::mbarrier_wait(shared.empty(stage), static_cast<unsigned>(1 - round % 2));\n", "",
             "Does it wait for `empty`"),
            ("shared.empty(stage), static_cast<unsigned>(1 - round % 2)", "shared.empty(1 - stage), static_cast<unsigned>(1 - round % 2)",
             "a race|a deadlock"),
            ("mbarrier_arrive(shared.empty(stage))", "mbarrier_arrive(shared.empty(1 - stage))", "a race|a deadlock"),
            ("    cuda::mbarrier_wait(shared.full(stage), static_cast<unsigned>(round % 2));\n", "",
             "a race, .* the consumer has not waited for `full`"),
            ("    cuda::mbarrier_arrive(shared.empty(stage));\n", "", "a deadlock: .* no consumer has emptied"),
            ("static_cast<unsigned>(1 - round % 2)", "static_cast<unsigned>(round % 2)", "a deadlock: .* return at once?"),
            ("sum = shared.sum_of_column(stage, column);\n    cuda::mbarrier_arrive(shared.empty(stage));",
             "cuda::mbarrier_arrive(shared.empty(stage));\n    sum = shared.sum_of_column(stage, column);",
             "a race, .* a consumer arrives there after its reads")],
    "11e": [("  if (group == 1) named_barrier_arrive<256>(1);\n", "", "a deadlock: .* warpgroup 1 has not arrived there"),
            ("    named_barrier_sync<256>(1 + group);\n", "", "a race, .* does warpgroup 0 wait at a barrier of its own"),
            ("named_barrier_arrive<256>(2 - group)", "named_barrier_arrive<128>(2 - group)",
             "the numbers of threads of sync and arrive"),
            ("    issue_products(a, group, thread);\n    named_barrier_arrive<256>(2 - group);\n",
             "    named_barrier_arrive<256>(2 - group);\n    issue_products(a, group, thread);\n",
             "a race, .* arrive there after its products, not before?")],
    "12": [("p * (factor * grad_p - delta)", "p * factor * (grad_p - delta)",
            "zigzag: dtable agrees with the dense reference: FAILED: beyond the tolerance; max 5.06"),
           ("attend(state, o, sink, 0, o)", "attend(state, o, sink, 1, o)",
            "zigzag: dsinks agrees with the dense reference: FAILED: beyond the tolerance; max 1.14"),
           ("  attend(state, o, sink, 0, o);\n", "", "FAIL", "the sink is ignored"),
           ("keep * o[d]", "o[d]", "zigzag: out agrees with the dense reference: FAILED: beyond the tolerance; max 3.6"),
           ("(factor * grad_p - delta)", "factor * grad_p", "FAIL", "no delta"),
           ("dense[pair.key]", "dense[pair.query]",
            "zigzag: lse agrees with the dense reference: FAILED: beyond the tolerance")],
    "13": [("dy + norm_gradient(kept.x", "norm_gradient(kept.x",
            "tensor 1, ulysses 1, ring 1, data 4, zigzag: two training steps"),
           ("all_reduce(*place.kv_replicas, gradients.wv.elements());", "",
            "tensor 4, ulysses 1, ring 1, data 1, zigzag: two training steps: FAILED: not the numbers of "
            "one process; max 0.998"),
           ("summed(layer, p.backward(std::move(d), layer.w, gradients))", "p.backward(std::move(d), layer.w, gradients)",
            "tensor 2, ulysses 1, ring 1, data 2, zigzag: two training steps: FAILED: not the numbers of "
            "one process; max 0.769")],
    "14": [("std::max(begin[at(r)], begin[at(Ring{r, ranks}.prev())])", "begin[at(Ring{r, ranks}.prev())]",
            "under noise it is the library's, for 2 to 31 ranks: 8.3e-02"),
           ("arrival[at(r)], arrival[at(Ring{r, ranks}.next())]", "arrival[at(r)]",
            "under noise it is the library's, for 2 to 31 ranks: 1.4e-01"),
           ("c * (c + 1) / 2", "c * c / 2", "lesson 09's contiguous ring, 256 tokens: 1.872 times ideal: 1.868")],
    "15": [("rescale(a.m, both.m) * state[i]", "state[i]",
            "no prompt: out is that of one causal forward: FAILED: beyond the tolerance; max 7.03"),
           ("key.push_back(1)", "key.push_back(s)",
            "no prompt: lse is that of one causal forward: FAILED: got is not finite"),
           ("std::size_t at = states.size(); at", "std::size_t at = 0; at",
            "no prompt: lse is that of one causal forward: FAILED: beyond the tolerance; max 0.693")],
    "16": [("sum.low[c] = by_one ? sum.high[c] : 0", "sum.low[c] = 0", "N(0, 1): agrees with the definition in double: 2.1e-01"),
           ("high = std::rint(y)", "high = std::trunc(y)", "the state is the largest level, and the sums of the digits there"),
           ("std::floor(", "std::ceil(", "floats and each wrong sum differ somewhere"),
           ("raise(other, sum.level);", "", "random terms, merged in 1000 random trees: the same state"),
           ("if (!std::isfinite(number)) return not_finite;", "if (std::isinf(number)) return not_finite;",
            "a NaN makes the sum NaN, in any order")],
}

ENDS_WITH_ONE = """
#include <cstdio>
#include <cstdlib>
struct Ends { ~Ends() { std::fflush(nullptr), std::_Exit(1); } };
inline const Ends ends;
"""
# As exercise.sh looks for it.
HAS_NUMPY = any(shutil.which(python) and subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0
                for python in ("python3", "/usr/bin/python3"))


def judge(copies, limit=40):
    done = subprocess.run(["sh", SOURCE / "lessons/exercise.sh", NUMBER, BUILD, copies], capture_output=True, text=True,
                          env={**os.environ, "LIMIT": str(limit * SLOWNESS)})
    return done.returncode, (done.stdout + done.stderr).splitlines()


KERNEL = NUMBER[-1].isalpha()
folder = next(SOURCE.glob(f"lessons/{NUMBER[:2]}_*"))
if KERNEL:
    source = next(folder.glob(f"exercises/{NUMBER[-1]}_*.cu"))
    copy_name, holes_file = NUMBER[:2] + source.name, source.with_suffix(".txt")
else:
    copy_name, holes_file = f"{folder.name}.hpp", folder / "exercise.txt"
    cmake = (SOURCE / "lessons/CMakeLists.txt").read_text(encoding="utf-8")
    source = folder / re.search(rf"add_lesson\({folder.name} IDEA (\S+)", cmake)[1].rstrip(")")
idea = source.read_text(encoding="utf-8")
shipped = subprocess.run(["awk", "-f", SOURCE / "lessons/with_holes.awk", holes_file, source], capture_output=True, text=True,
                         check=True).stdout
holes = re.findall(r'still_empty\("(.*)"\)', shipped)
with tempfile.TemporaryDirectory() as name:
    copies = Path(name)
    copy = copies / copy_name

    code, lines = judge(copies)
    expect(copy.exists() and copy.read_text(encoding="utf-8") == shipped, "the judge makes a copy", lines)
    told = [line for line in lines if "your copy is" not in line and "is compiled first" not in line]
    sentence = ", ".join(f"`{hole}`" for hole in holes) + (" are" if len(holes) > 1 else " is") + " still empty"
    expect((code, told) == (1, [f"exercise {NUMBER}: {sentence}"]), "all holes are named", [code, *lines])

    for right, wrong, words, *named in WRONG[NUMBER][:None if LONG else 1]:
        expect(idea.count(right) == 1, f"the idea has `{right}`", [])
        copy.write_text(idea.replace(right, wrong), encoding="utf-8")
        # A machine that is too slow to reach the deadlock in that time gets the same words.
        code, lines = judge(copies, limit=2 if words == "deadlock" else 40)
        where = lines[-1:] if words in ("FAIL", "deadlock") else lines
        said = re.search(words, lines[0]) if KERNEL else any(words in line for line in where)
        expect(code == 1 and said, f"`{wrong}` for `{right}`: {words}", [code, *lines])
        for mistake in named if HAS_NUMPY or NUMBER < "05" else ():
            expect(any(f": {mistake}" in line for line in lines), f"it is named: {mistake}", lines)
    if NUMBER == "01":  # every check passes, and the program ends with an error
        copy.write_text(idea + ENDS_WITH_ONE, encoding="utf-8")
        code, lines = judge(copies)
        expect(code == 1 and lines[-1].endswith("exit code 1; see above"), "an exit code counts", [code, *lines])
    if LONG:
        copy.write_text(idea, encoding="utf-8")
        code, lines = judge(copies)
        expect(code == 0 and len(lines) == 1 and re.fullmatch(rf"exercise {NUMBER}: PASS \| error \S+ \| .*", lines[0]),
               "the idea passes", [code, *lines])
        expect(copy.read_text(encoding="utf-8") == idea, "the judge leaves the copy as it is", [])
finish()
