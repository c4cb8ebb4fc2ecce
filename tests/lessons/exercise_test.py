"""The exercise of a lesson, as lessons/exercise.sh judges it: exercise_test.py NN [long].

- The judge makes a copy of exercise.hpp, once, and says which hole of it is still empty.
- With a wrong line in the place of the right one the exercise fails, in words of its own. Without `long` one wrong line is
  tried, else each.
- `long`: with the lesson's idea in the place of the copy it passes.

That exercise.hpp is the idea outside its holes: ideas_test.py.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
NUMBER, LONG = sys.argv[1], sys.argv[2:] == ["long"]
SLOWNESS = int(os.environ.get("RING_ATTENTION_SLOWNESS", "1"))

# What a reader may well write: (in the idea, in its place, what the judge then says)
WRONG = {
    "01": [("m = std::max(m, x[i])", "m = x[i]", "FAIL")],
    "02": [("state.l * move(state.m, m)", "state.l", "FAIL"),
           ("from == negative_infinity<T> ? T{0} : ", "", "FAIL")],
    "03": [("keep * l + add", "l + add", "FAIL")],
    "04": [("if (rank > 0) check_mpi", "if (rank > 1) check_mpi", "FAIL"),
           ("if (rank < last) check_mpi", "if (rank + 1 < last) check_mpi", "deadlock")],
    "05": [("ring.rank % 2 == 0", "true", "deadlock"),
           ("std::swap(current, incoming);", "", "FAIL"),
           ("next_owner = ring.owner(step + 1)", "next_owner = ring.owner(step)", "verdict: [rank 1] MPI: Message truncated")],
    "06": [("std::swap(current, incoming);", "", "FAIL"),
           ("ring.prev(), 0", "ring.prev(), 1", "deadlock")],
    "07": [("ds(i, j) - delta[i]", "ds(i, j)", "FAIL"),
           ("scale * ds * k", "ds * k", "FAIL")],
    "08": [("std::plus<>()", "std::minus<>()", "FAIL"),
           ("if (step < gradient_hops) start", "if (step + 1 < gradient_hops) start", "FAIL")],
    "09": [("2 * n - 1 - r", "n + r", "FAIL"),
           ("key <= query", "key < query", "FAIL")],
    "10": [("held.push_back({heads[u], ", "held.push_back({heads[own], ", "FAIL"),
           ("sum += *next++", "sum = *next++", "FAIL")],
    "12": [("p * (factor * grad_p - delta)", "p * factor * (grad_p - delta)", "FAIL"),
           ("attend(state, o, sink, 0, o)", "attend(state, o, sink, 1, o)", "FAIL"),
           ("dense[pair.key]", "dense[pair.query]", "FAIL")],
    "13": [("dy + norm_gradient(kept.x", "norm_gradient(kept.x", "FAIL"),
           ("all_reduce(*place.kv_replicas, gradients.wv.elements());", "", "FAIL"),
           ("summed(layer, p.backward(std::move(d), layer.w, gradients))", "p.backward(std::move(d), layer.w, gradients)",
            "FAIL")],
    "14": [("std::max(begin[at(r)], begin[at(Ring{r, ranks}.prev())])", "begin[at(Ring{r, ranks}.prev())]", "FAIL"),
           ("arrival[at(r)], arrival[at(Ring{r, ranks}.next())]", "arrival[at(r)]", "FAIL"),
           ("c * (c + 1) / 2", "c * c / 2", "FAIL")],
    "15": [("rescale(a.m, both.m) * state[i]", "state[i]", "FAIL"),
           ("key.push_back(1)", "key.push_back(s)", "FAIL"),
           ("std::size_t at = states.size(); at", "std::size_t at = 0; at", "FAIL")],
    "16": [("sum.low[c] = by_one ? sum.high[c] : 0", "sum.low[c] = 0", "FAIL"),
           ("high = std::rint(y)", "high = std::trunc(y)", "FAIL"),
           ("std::floor(", "std::ceil(", "FAIL"),
           ("raise(other, sum.level);", "", "FAIL"),
           ("if (!std::isfinite(number)) return not_finite;", "if (std::isinf(number)) return not_finite;", "FAIL")],
}

failures = 0


def judge(copies, limit=40):
    done = subprocess.run(["sh", SOURCE / "lessons/exercise.sh", NUMBER, BUILD, copies], capture_output=True, text=True,
                          env={**os.environ, "LIMIT": str(limit * SLOWNESS)})
    return done.returncode, (done.stdout + done.stderr).splitlines()


def expect(holds, what, seen):
    global failures
    print(f"{'ok  ' if holds else 'FAIL'} exercise {NUMBER}: {what}", flush=True)
    if not holds:
        failures += 1
        print("  " + "\n  ".join(map(str, seen)), flush=True)


folder = next(SOURCE.glob(f"lessons/{NUMBER}_*"))
cmake = (SOURCE / "lessons/CMakeLists.txt").read_text(encoding="utf-8")
idea = (folder / re.search(rf"add_lesson\({folder.name} IDEA (\S+)", cmake)[1].rstrip(")")).read_text(encoding="utf-8")
shipped = (folder / "exercise.hpp").read_text(encoding="utf-8")
holes = re.findall(r'still_empty\("(.*)"\)', shipped)
with tempfile.TemporaryDirectory() as name:
    copies = Path(name)
    copy = copies / f"{folder.name}.hpp"

    code, lines = judge(copies)
    expect(copy.exists() and copy.read_text(encoding="utf-8") == shipped, "the judge makes a copy", lines)
    told = [line for line in lines if "your copy is" not in line]
    sentences = [f"exercise {NUMBER}: `{hole}` is still empty" for hole in holes]
    expect(code == 1 and len(told) == 1 and told[0] in sentences, "a hole is still empty", [code, *lines])

    for right, wrong, words in WRONG[NUMBER][:None if LONG else 1]:
        expect(idea.count(right) == 1, f"the idea has `{right}`", [])
        copy.write_text(idea.replace(right, wrong), encoding="utf-8")
        # A machine that is too slow to reach the deadlock in that time gets the same words.
        code, lines = judge(copies, limit=2 if words == "deadlock" else 40)
        expect(code == 1 and words in lines[-1], f"`{wrong}` for `{right}`: {words}", [code, *lines])
    if LONG:
        copy.write_text(idea, encoding="utf-8")
        code, lines = judge(copies)
        expect(code == 0 and len(lines) == 1 and re.fullmatch(rf"exercise {NUMBER}: PASS \| error \S+ \| .*", lines[0]),
               "the idea passes", [code, *lines])
        expect(copy.read_text(encoding="utf-8") == idea, "the judge leaves the copy as it is", [])
print(f"{failures} failures")
sys.exit(1 if failures else 0)
