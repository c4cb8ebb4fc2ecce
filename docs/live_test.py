"""The live page in a browser, from a file:// address and from a site: right runs, mistakes, addresses.

CHROME names the browser; exit code 77 and a reason where there is none.
"""

import base64
import json
import platform
import random
import subprocess
import sys
import urllib.parse
from pathlib import Path

import player_test
from player_hostile import cpu_seconds
from player_test import BUILD, ROOT

sys.path.insert(0, str(ROOT / "src/python"))
try:
    import numpy as np
    from ring_attention_diagnose.diagnosis import diagnose
    from ring_attention_diagnose.placement import Job
    from ring_attention_diagnose.problem import ARRAYS, Case, Problem
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANDOM, NATIVE = 100, 12  # choices; of these so many are compared with the program
FIRST_SECONDS = 0.5  # of CPU, of a page that is loaded, to its first verdict
ULP = 8  # of the largest number of an array: 5 were seen
# What shows a mistake on this page and names it.
RING = {"ranks": 4, "tokens": 24, "kv_heads": 2, "dim": 16}
SHOWS = {
    "documents-ignored": {"mask": "documents"}, "window-ignored": {"mask": "window", "width": 5},
    "window-plus-one": {"mask": "window", "width": 5}, "mask-as-zigzag": {"placement": "contiguous"},
}

# Runs a choice; arrays come as base64.
RUN = """(async (address) => {
  await live.run(live.choose(address));
  const { events, checks, arrays, trace, failed } = live.last;
  const text = (array) => btoa(new Uint8Array(array.buffer).reduce((all, byte) => all + String.fromCharCode(byte), ""));
  return { said: by("verdict").textContent, right: !failed && checks.length === 5 && checks.every((one) => one.right),
           failed: Boolean(failed), events: JSON.stringify(events), missing: trace ? trace.verdict : [],
           arrays: Object.entries(arrays ?? {}).map(([name, array]) => [name, text(array)]) };
})"""


def run(page, words):
    done = page.run(f"{RUN}({json.dumps(words if isinstance(words, str) else urllib.parse.urlencode(words))})")
    done["arrays"] = {name: np.frombuffer(base64.b64decode(text), np.float32) for name, text in done["arrays"]}
    return done


def random_choice(of):
    """Within the form's limits; small, so that a hundred take seconds."""
    partition = of.choice(["ring", "ring", "ulysses", "hybrid", "all-gather"])
    shares = partition in ("ulysses", "hybrid")
    heads = of.choice([4, 8] if shares else [1, 2, 4, 6])
    ranks = of.choice([2, 4] if shares else [1, 2, 3, 4, 5, 7, 8, 16])
    return {
        "ranks": ranks, "tokens": of.randint(ranks, 160), "heads": heads, "dim": of.choice([16, 32, 64]),
        "kv_heads": heads if shares else of.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "width": of.randint(1, 40), "partition": partition,
        "mask": of.choice(["none", "causal", "window", "documents", "prefix", "chunks", "first-keys"]),
        "placement": of.choice(["contiguous", "striped", "zigzag", "balanced"]),
        "link": of.choice([0.01, 1, 100]), "latency": of.choice([0.5, 50]), "gflops": of.choice([1, 1000]),
    }


def native(words, folder):
    """The arrays of `ring-attention run` with the kernels that have the module's arithmetic."""
    width, tokens = words["width"], words["tokens"]
    documents, results = Path(folder) / "documents.npy", Path(folder) / "results"
    np.save(documents, np.array([0, tokens // 6, tokens * 2 // 3, tokens]))
    masks = {"none": [], "causal": ["--causal"], "window": ["--window", f"{width - 1},0"],
             "documents": ["--causal", "--documents", documents], "prefix": ["--causal", "--prefix", min(width, tokens)],
             "chunks": ["--causal", "--chunk", width],
             "first-keys": ["--window", f"{width - 1},0", "--sink-tokens", min(4, tokens)]}
    command = [BUILD / "mpirun", "-n", words["ranks"], BUILD / "ring-attention", "run", "--backward", "--isa", "x86-64",
               "--random", f"1,{words['heads']},{tokens},{words['dim']}", "--kv-heads", words["kv_heads"], "--seed", 1,
               "--threads", 1, "--parallel", words["partition"], "--out", results, *masks[words["mask"]],
               *([] if words["partition"] == "ulysses" else ["--placement", words["placement"]]),
               *(["--ulysses", 2] if words["partition"] == "hybrid" else [])]
    subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, check=True)
    return {name: np.load(results / f"{name}.npy").ravel() for name in ARRAYS}


def differences(got, want):
    """`out` has the program's bits. lse is another libm's, and gradients read it: their terms cancel."""
    for name, due in want.items():
        same = got[name].view(np.uint32) == due.view(np.uint32)
        far = ~(same if name == "out" else abs(got[name] - due) <= ULP * np.spacing(abs(due).max()))
        if far.any():
            yield f"{name}: {far.sum()} of {far.size} numbers are not the program's"


def right_runs(page, folder):
    of = random.Random(1)
    has_program = (BUILD / "ring-attention").exists() and platform.machine() in ("x86_64", "AMD64")
    for number in range(RANDOM):
        words = random_choice(of)
        done = run(page, words)
        if not done["right"] or done["missing"]:
            yield f"{words}: {done['said']} {done['missing']}"
        elif has_program and number < NATIVE:
            yield from (f"{words}: {one}" for one in differences(done["arrays"], native(words, folder)))


def same_events(page):
    words = {"ranks": 5, "tokens": 200, "placement": "balanced", "mask": "window", "width": 40, "kv_heads": 2}
    if run(page, words)["events"] != run(page, words)["events"]:
        yield "two runs of one choice have other events"


def named(words, arrays):
    """The ids that diagnose gives the arrays of the page."""
    masks = {"documents": {"documents": (0, 4, 16, 24)}, "window": {"window": 5}}
    case = Case("page", "", causal=True, heads=4, value_dim=words["dim"], **masks.get(words.get("mask"), {}),
                **{name: words[name] for name in ("kv_heads", "tokens", "dim")})
    whole = {name: array.reshape(case.kv_heads if name in ("k", "v", "dk", "dv") else case.heads, case.tokens, -1)
             for name, array in arrays.items()}
    given = {name: whole[name].astype(np.float64) for name in ("q", "k", "v", "dout")}
    problem = Problem(case, Job(words["ranks"], words.get("placement", "zigzag")), 1).given(given)
    found = diagnose([(problem, {name: whole[name] for name in ARRAYS})])
    return {one.id for part in (found.forward, found.backward) for why in part.explanations for one in why.mistakes}


def mistakes(page):
    ids = page.run("Object.keys(liveModule.mistakes)")
    if len(ids) < 12:
        yield f"the page has {len(ids)} mistakes"
    for one in ids:
        words = {**RING, **SHOWS.get(one, {}), "mistake": one}
        done = run(page, words)
        if done["failed"] or not (done["said"].startswith("Wrong: ") and f"({one})" in done["said"]):
            yield f"{one}: the page says: {done['said']}"
        elif one not in (found := named(words, done["arrays"])):
            yield f"{one}: diagnose names {found}"


def addresses(page):
    for address in ("ranks=0", "ranks=4&ranks=5", "ranks=1e9", "tokens=", "planks=3", "ranks=<b>4", "ranks=4.5", "tokens=-1",
                    "mask=%3Cimg src=x onerror=alert(1)%3E", "link=NaN", "mistake=constructor", "__proto__=1"):
        done = run(page, address)
        if "first choice instead" not in done["said"] or not done["right"] or page.run("live.field('ranks').value") != "4":
            yield f"{address}: the page says: {done['said']}"
    if page.run("document.querySelectorAll('#verdict *, #about *').length"):
        yield "an address has become markup"
    for address, due in (("tokens=8192&heads=16", "choose at most"), ("kv_heads=3", "choose a divisor")):
        if due not in (said := run(page, address)["said"]):
            yield f"{address}: the page says: {said}"


def questions(page):
    runs = page.run("[...document.querySelectorAll('#questions a')].map((one) => one.hash.slice(1))")
    for address in runs:
        said = run(page, address)["said"]
        if not said.startswith("Wrong: " if "mistake" in address else "Right: "):
            yield f"a question leads to {address}, of which the page says: {said}"
    if page.run("document.querySelectorAll('#questions details').length") != 6 or len(runs) < 6:
        yield "there are not six questions with runs"


def first_verdict(page, url):
    for attempt in range(3):  # on a busy machine it takes longer
        page.open(f"{url}?{attempt}#overlapped")
        page.run("player.stop(); live.module.then(() => 0)")
        before = cpu_seconds(page)
        page.run("live.run().then(() => 0)")
        spent, said = cpu_seconds(page) - before, page.run("by('verdict').textContent")
        if said.startswith("Right: ") and spent <= FIRST_SECONDS:
            return
    yield f"the first verdict: {spent:.2f} s of CPU: {said}"


def failures_at(page, url, folder):
    page.look(1280, height=800, reduced=True)
    found = [*first_verdict(page, url), *same_events(page), *addresses(page), *questions(page)]
    return found + [*right_runs(page, folder), *mistakes(page)] if url.startswith("file:") else found  # once is enough


if __name__ == "__main__":
    sys.exit(player_test.main(failures_at))
