"""The judge of the capstone: capstone_test.py [long].

The solution in C++ passes all levels, and the start none. `long`: so does the solution in Python, and a mistake in it
is named at the level that shows it; a deadlock, a rank that fails and missing results are said in one line.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if importlib.util.find_spec("numpy") is None:
    print(f"skipped: {sys.executable} has no NumPy")
    sys.exit(77)

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
LESSON, SOLUTIONS = SOURCE / "lessons/17_capstone", SOURCE / "tests/lessons/capstone"
SLOWNESS = int(os.environ.get("RING_ATTENTION_SLOWNESS", "1"))
LONG = sys.argv[1:] == ["long"]

# In the solution in Python: (right lines, wrong ones, the line of the level that fails).
WRONG = (
    ("    for step in range(ranks):\n        owner = (rank - step) % ranks\n        scores",
     "    for step in range(ranks - 1):\n        owner = (rank - step) % ranks\n        scores",
     "level 1 full: FAIL | N - 1 steps: the last parcel of K,V is never used"),
    ("old * o + p", "o + p", "level 1 full: FAIL | l is moved to the new maximum, o is not"),
    ("        owner = (rank - step) % ranks\n        scores", "        owner = (rank + step) % ranks\n        scores",
     "level 2 causal: FAIL | the owner of a parcel is taken as (r + t) mod N"),
    ("positions[owner] <= positions[rank][:, None]", "np.arange(k.shape[1]) <= np.arange(q.shape[1])[:, None]",
     "level 2 causal: FAIL | the mask compares places in the shards, not positions"),
    ("positions[owner] <= positions[rank][:, None]",
     "np.arange(k.shape[1]) + owner * k.shape[1] <= np.arange(q.shape[1])[:, None] + rank * q.shape[1]",
     "level 3 placement: FAIL | the mask takes the shards as contiguous"),
    ("np.repeat(x, group, axis=0)", "np.tile(x, (group, 1, 1))",
     "level 4 GQA: FAIL | query head h uses KV head h mod Hkv, not h / g"),
    ("        dkv = ring.shift(dkv, before)  # N hops: the last one is back to the owner\n"
     "        if step + 1 < ranks:\n",
     "        if step + 1 < ranks:\n            dkv = ring.shift(dkv, before)\n",
     "level 5 gradients: FAIL | dK,dV stop one hop before their owner"),
    ("        ds = p * (dout @ of_query_heads(kv[1]).swapaxes(1, 2) - delta)",
     "        ds = p * (dout @ of_query_heads(kv[1]).swapaxes(1, 2))", "level 5 gradients: FAIL | no delta"),
    ("        sender.start()\n", "", "level 1 full: FAIL | no end after 2 s: rank 0, 1, 2 of 3 still runs"),
    ("    ring = Ring()\n", "    if rank == 1:\n        raise ValueError('told so')\n    ring = Ring()\n",
     "level 1 full: FAIL | rank 1 of 3 ended with exit code 1: ValueError: told so"),
    ("    for name, array in results.items():", "    for name, array in results.items() if rank != 2 else ():",
     "level 1 full: FAIL | rank 2: wrote no out.npy into OUT"),
    ('results.update(zip(("dq", "dk", "dv")', 'results.update(zip(("dq", "dk")',
     "level 5 gradients: FAIL | rank 0: wrote no dv.npy into OUT"),
    ("array.astype(np.float32)", "array[:, 1:].astype(np.float32)",
     "level 1 full: FAIL | out.npy of rank 0: the shape ["),
)
failures = 0


def judge(*words, limit=60):
    done = subprocess.run([sys.executable, LESSON / "judge.py", *words], capture_output=True, text=True,
                          env={**os.environ, "LIMIT": str(limit * SLOWNESS)})
    return done.returncode, done.stdout + done.stderr


def expect(holds, what, seen):
    global failures
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        failures += 1
        print(*seen, sep="\n", flush=True)


def expect_levels(folder, level):
    code, text = judge(folder)
    passed = re.findall(r"^level \d \w+: PASS \| 3 and 4 ranks$", text, re.MULTILINE)
    last = text.splitlines()[-1]
    expect((code, len(passed), last) == (0 if level == 5 else 1, level, f"capstone: level {level} of 5"),
           f"{folder.parent.name}/{folder.name} reaches level {level}", [code, text])
    return text


def expect_refused(words, says):
    code, text = judge(*words)
    expect(code == 2 and re.fullmatch(r"error: [^\n]*\n", text) and says in text, f"refused: {says}", [code, text])


with tempfile.TemporaryDirectory() as name:
    place = Path(name)
    shutil.copytree(SOLUTIONS / "cpp", place / "solutions/cpp")  # it is compiled there
    expect_levels(place / "solutions/cpp", 5)
    shutil.copytree(LESSON / "start", place / "start")
    for language in ("python", "cpp") if LONG else ("python",):
        text = expect_levels(place / "start" / language, 0)
        expect("each rank attends to its own shard only" in text, "the start is named", [text])
    expect_refused([], "no folder")
    expect_refused([place], f"{place}/run: is not there")
    (place / "start/python/run").chmod(0o644)
    expect_refused([place / "start/python"], "cannot be executed")
    if LONG:
        expect_levels(SOLUTIONS / "python", 5)
        right = (SOLUTIONS / "python/ring.py").read_text(encoding="utf-8")
        shutil.copytree(SOLUTIONS / "python", place / "wrong")
        for lines, wrong, says in WRONG:
            expect(right.count(lines) == 1, f"the solution has {lines!r}", [])
            (place / "wrong/ring.py").write_text(right.replace(lines, wrong), encoding="utf-8")
            code, text = judge(place / "wrong", limit=2 if "no end" in says else 60)
            told = re.search(r"^level \d \w+: FAIL.*", text, re.MULTILINE)
            says = says.replace("2 s", f"{2 * SLOWNESS} s")
            expect(code == 1 and told and told[0].startswith(says), says, [code, text])
print(f"{failures} failures")
sys.exit(1 if failures else 0)
