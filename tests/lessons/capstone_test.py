"""The judge of the capstone: capstone_test.py [long].

The solution in C++ passes all levels, and the start none; some mistakes in the solution in Python fail as they should.
`long`: the right one passes, and each mistake is named at the level that shows it; a deadlock, a rank that fails and
missing results are said in one line, with what the rank printed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from expect import expect, finish

if importlib.util.find_spec("numpy") is None:
    print(f"skipped: {sys.executable} has no NumPy")
    sys.exit(77)

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
LESSON, SOLUTIONS = SOURCE / "lessons/17_capstone", SOURCE / "tests/lessons/capstone"
SLOWNESS = int(os.environ.get("RING_ATTENTION_SLOWNESS", "1"))
LONG = sys.argv[1:] == ["long"]

# In the solution in Python: (right lines, wrong ones, the line of the level that fails, what else is said).
SOME = (
    ("p, old = np.exp(scores - finite),", "p, old = np.exp(scores - finite).astype(np.float16),",
     "level 1 full: FAIL | out is right to ", "is something rounded"),
    ('"lse": lse[..., 0]', '"lse": lse[..., 0] / np.log(2)', "level 1 full: FAIL | lse is in base 2"),
    ("array.astype(np.float32)", "array.astype(np.float16)",
     "level 1 full: FAIL | out.npy of rank 0: the elements are float16"),
    ("\n\nmain()\n", "\n\nmain()\nsys.exit(rank == 1)\n",
     "level 1 full: FAIL | rank 1 of 3 ended ", "with exit code 1"),
    ("    return o / l, m + np.log(l)", "    return o, m + 2 * np.log(l)",
     "level 1 full: FAIL | out is not divided by l; lse.npy does not fit this"),
    ("    results = {",
     "    import os\n    if rank == 1:\n        os.path.exists(__file__ + '.ran') and sys.exit(1)\n"
     "        open(__file__ + '.ran', 'w').close()\n    results = {",
     "level 1 full: FAIL | in run 2 of 2, and not before (a race?): "),
)
WRONG = (
    ('"lse": lse[..., 0]', '"lse": 1.1 * lse[..., 0]',
     "level 1 full: FAIL | all but lse is right; lse.npy does not fit this"),
    ("new_m = np.maximum(m, scores.max(2, keepdims=True))", "new_m = np.zeros_like(m)",
     "level 2 causal: FAIL | with large scores: the maximum starts at a finite number"),
    ("    return scores\n", "    scores[..., min(map(len, positions)):] = -np.inf\n    return scores\n",
     "level 3 placement: FAIL | with uneven shards: wrong"),
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
     "level 5 gradients: FAIL | dK,dV stop one hop before their owner, or one behind it"),
    ("            kv = ring.shift(kv, before)\n    return dq",
     "            kv = ring.shift(kv, before)\n    dkv = ring.shift(dkv, len(positions[rank - 1]))\n    return dq",
     "level 5 gradients: FAIL | dK,dV stop one hop before their owner, or one behind it"),
    ("    dq, dkv, delta = np.zeros_like(q)",
     "    for step in range(ranks - 1):\n        kv = ring.shift(kv, len(positions[(rank - step - 1) % ranks]))\n"
     "    dq, dkv, delta = np.zeros_like(q)",
     "level 5 gradients: FAIL | the owner of a parcel is taken as the next step's owner; and",
     "K,V were not reset to the rank's own"),
    ("        ds = p * (dout @ of_query_heads(kv[1]).swapaxes(1, 2) - delta)",
     "        ds = p * (dout @ of_query_heads(kv[1]).swapaxes(1, 2))", "level 5 gradients: FAIL | no delta"),
    # An error that is smaller than any mistake's, or than that of a coarser type.
    ('{"out": o,', '{"out": o + 1e-4,', "level 1 full: FAIL | out is right to ", "which is not float32's 1e-06"),
    ("o, l, m = old * o + p @ of_query_heads(kv[1]),",
     "o, l, m = (old * o + p @ of_query_heads(kv[1])).astype(np.float16),",
     "level 1 full: FAIL | out is right to ", "is something rounded"),
    ('{"out": o,', '{"out": o * (np.nan if rank == 2 else 1),',
     "level 1 full: FAIL | out has NaN or infinity in rank 2: a step in which a row sees no key?", "NaN*"),
    ("return dq, dkv[0], dkv[1]", "return ranks * dq, ranks * dkv[0], ranks * dkv[1]",
     "level 5 gradients: FAIL | dq, dk and dv are the gradients of sum(out * dout) times 3, the number of ranks"),
    # How ranks end.
    ("        sender.start()\n", "", "level 1 full: FAIL | no end after 2 s: ranks 0, 1 and 2 of 3 still run;",
     "rank 2 printed nothing"),
    ("    ring = Ring()\n",
     "    if rank == 1:\n        return np.save(f'{out}/out.npy', np.zeros(3))\n"
     "    print('before', 'the hang', flush=True)\n    ring = Ring()\n",
     "level 1 full: FAIL | no end after 2 s: ranks 0 and 2 of 3 still run (rank 1 ended with exit code 0);",
     "  rank 0 printed last:\n    before the hang\n  rank 2 printed last:\n    before the hang\n"),
    ("    ring = Ring()\n", "    if rank == 1:\n        raise ValueError('told so')\n    ring = Ring()\n",
     "level 1 full: FAIL | rank 1 of 3 ended first, with exit code 1: ValueError: told so",
     "  rank 1 printed last:\n    Traceback", "in main\n"),
    ("    ring = Ring()\n", "    ring = Ring()\n    if rank == 1:\n        print('good bye')\n        return\n",
     "level 1 full: FAIL | rank 1 of 3 ended first, with exit code 0: it wrote no out.npy into OUT",
     "  rank 1 printed last:\n    good bye\n"),
    ("    ring = Ring()\n",
     "    if rank == 1:\n        import os\n        os.kill(os.getpid(), 11)\n    ring = Ring()\n",
     "level 1 full: FAIL | rank 1 of 3 ended first, with signal 11, segmentation fault"),
    ("    for name, array in results.items():", "    for name, array in results.items() if rank != 2 else ():",
     "level 1 full: FAIL | rank 2 of 3 ended", "with exit code 0", "it wrote no out.npy into OUT"),
    ('results.update(zip(("dq", "dk", "dv")', 'results.update(zip(("dq", "dk")',
     "level 5 gradients: FAIL | rank ", "it wrote no dv.npy into OUT"),
    ("    for name, array in results.items():",
     "    for name, array in results.items() if rank != 2 else [('out', o)]:",
     "level 1 full: FAIL | rank 2: wrote no lse.npy into OUT"),
    # Results in another shape or type.
    ("array.astype(np.float32)", "array[:, 1:].astype(np.float32)",
     "level 1 full: FAIL | out.npy of rank 0: the shape [4, 7, 16] is not [heads, tokens, dim], here [4, 8, 16]"),
    ("return dq, dkv[0], dkv[1]", "return dq, *(np.repeat(dkv, group, axis=1) / group)",
     "level 5 gradients: FAIL | dk.npy of rank 0: the shape [4, 8, 16] is not [kv_heads, tokens, dim], here [2, 8, 16]"),
    ("array.astype(np.float32)", "array.astype(int)",
     "level 1 full: FAIL | out.npy of rank 0: the elements are integers"),
)
# Rank 0 starts all ranks, as it would start mpirun.
RANK_0_STARTS = """#!/bin/sh
shared=$(sed -n 's/^shared //p' "$3/case.txt")
echo "$3 $4" > "$shared/part_$1" && mv "$shared/part_$1" "$shared/rank_$1"
if test "$1" = 0; then
  for rank in $(seq 0 $(($2 - 1))); do
    until test -e "$shared/rank_$rank"; do sleep 0.01; done
    "$PYTHON" "$(dirname "$0")/ring.py" "$rank" "$2" $(cat "$shared/rank_$rank") &
  done
  wait
  touch "$shared/end"
fi
until test -e "$shared/end"; do sleep 0.01; done
"""
FAILS_IF_UNEVEN = """#!/bin/sh
if grep -q "^tokens 23$" "$3/case.txt"; then exit 1; fi
exec "$(dirname "$0")/ring" "$@"
"""
CASES = ["full", "causal, large", "causal, uneven", "gqa, uneven", "gqa, uneven, large"]


def judge(*words, limit=60, **environment):
    done = subprocess.run([sys.executable, LESSON / "judge.py", *words], capture_output=True, text=True,
                          env={**os.environ, "LIMIT": str(limit * SLOWNESS), **environment})
    return done.returncode, done.stdout + done.stderr


def expect_levels(folder, level):
    code, text = judge(folder)
    passed = re.findall(r"^level \d \w+: PASS \| (.+), on 3 and 4 ranks$", text, re.MULTILINE)
    last = text.splitlines()[-1]
    expect((code, passed, last) == (0 if level == 5 else 1, CASES[:level], f"capstone: level {level} of 5"),
           f"{folder.parent.name}/{folder.name} reaches level {level}", [code, text])
    return text


def expect_refused(words, says):
    code, text = judge(*words)
    expect(code == 2 and re.fullmatch(r"error: [^\n]*\n", text) and says in text, f"refused: {says}", [code, text])


def expect_page(place):
    """The first commands of the page, before `make`, work in a fresh clone."""
    page = (LESSON / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^```sh\n(.*?)^make", page, re.MULTILINE | re.DOTALL)[1]
    shutil.copytree(LESSON, place / "lessons/17_capstone")
    done = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True)
    expect((place / "exercises/my-ring/run").is_file(), "the first command of the page", [command, done.stderr])


def expect_first_line(folder):
    """A script that the system cannot start is said in one line."""
    script = (folder / "run").read_text(encoding="utf-8")
    for text in (script.replace("#!/bin/sh\n", ""), script.replace("\n", "\r\n")):
        (folder / "run").write_text(text, encoding="utf-8", newline="")
        code, text = judge(folder)
        says = r"level 1 full: FAIL \| [^\n]*/run: cannot be started, [^\n]*: its first line must be #!/bin/sh or another"
        expect(code == 1 and re.match(says, text) and "Traceback" not in text, "the first line of run", [code, text])
    (folder / "run").write_text(script, encoding="utf-8")
    (folder / "build").write_text("true\n", encoding="utf-8")
    (folder / "build").chmod(0o755)
    expect_refused([folder], "/build: cannot be started")
    (folder / "build").unlink()


def expect_kept(folder, place):
    """The folders of a run, with KEEP alone, and the commands that start its ranks."""
    place.mkdir()
    judge(folder, TMPDIR=str(place))
    expect(not list(place.iterdir()), "nothing is kept", list(place.iterdir()))
    code, text = judge(folder, TMPDIR=str(place), KEEP="1")
    results = sorted(place.glob("*/1-full-3-1/*/out/out.npy"))
    ports = {int(re.search(r"^port (\d+)$", file.read_text(), re.M)[1]) for file in place.glob("*/1-full-3-1/*/in/case.txt")}
    expect(len(ports) == 1 and 20000 <= min(ports) < 32000, "no port that a system may draw for a connection", [ports])
    expect(len(results) == 3 and len(list(place.glob("*/1-full-3-1/*/output.txt"))) == 3, "the folders are kept", [code, text])
    for file in results:
        file.unlink()
    commands = re.findall(r"^ +(export PYTHON=.*|/.*/run \d 3 .* &)$", text, re.MULTILINE)
    done = subprocess.run("\n".join([*commands, "wait"]), shell=True, capture_output=True, text=True)
    expect(len(commands) == 4 and results == sorted(place.glob("*/1-full-3-1/*/out/out.npy")), "they start the ranks",
           [text, done.stderr])


with tempfile.TemporaryDirectory() as name:
    place = Path(name)
    (place / "clone").mkdir()
    expect_page(place / "clone")
    shutil.copytree(SOLUTIONS / "cpp", place / "solutions/cpp")  # it is compiled there
    expect_levels(place / "solutions/cpp", 5)
    (place / "solutions/cpp/build").unlink()
    (place / "solutions/cpp/run").write_text(FAILS_IF_UNEVEN, encoding="utf-8")
    expect("FAIL | with uneven shards: " in expect_levels(place / "solutions/cpp", 2), "shards are uneven", [])
    shutil.copytree(LESSON / "start", place / "start")
    for language in ("python", "cpp") if LONG else ("python",):
        text = expect_levels(place / "start" / language, 0)
        expect("each rank attends to its own shard only" in text, "the start is named", [text])
    expect_first_line(place / "start/python")
    expect_kept(place / "start/python", place / "temporary")
    expect_refused([], "no folder")
    expect_refused([place], f"{place}/run: is not there")
    (place / "start/python/run").chmod(0o644)
    expect_refused([place / "start/python"], "cannot be executed")
    shutil.copytree(SOLUTIONS / "python", place / "wrong")
    if LONG:
        expect_levels(SOLUTIONS / "python", 5)
        (place / "wrong/run").write_text(RANK_0_STARTS, encoding="utf-8")
        expect_levels(place / "wrong", 5)
        shutil.copy(SOLUTIONS / "python/run", place / "wrong/run")
    right = (SOLUTIONS / "python/ring.py").read_text(encoding="utf-8")
    for lines, wrong, says, *more in SOME + WRONG if LONG else SOME:
        expect(right.count(lines) == 1, f"the solution has {lines!r}", [])
        (place / "wrong/ring.py").write_text(right.replace(lines, wrong), encoding="utf-8")
        code, text = judge(place / "wrong", limit=2 if "no end" in says else 60, RUNS="2" if "in run 2" in says else "1")
        told = re.search(r"^level \d \w+: FAIL.*", text, re.MULTILINE)
        says = says.replace("2 s", f"{2 * SLOWNESS} s")
        expect(code == 1 and told and told[0].startswith(says) and all(words in text for words in more), says, [code, text])
finish()
