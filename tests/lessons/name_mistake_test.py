"""What the judge of an exercise names: the lessons' mutants hand over their arrays as a copy of a learner does.

Without `long` one mutant of a lesson is tried, and not lesson 12, whose program takes seconds.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

if importlib.util.find_spec("numpy") is None:
    print(f"skipped: {sys.executable} has no NumPy")
    sys.exit(77)

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "lessons"))
from name_mistake import Options, answers_in, diagnose

BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))
LONG = sys.argv[1:] == ["long"]
SMALL = "--seq 24 --dim 16"  # as exercise.sh has it
PROGRAMS = {  # ranks, flags, {mutant: what is named}; of a right ring, nothing
    "05_blocking_ring": (4, SMALL, {"step-too-few": "N - 1 steps: the last parcel of K,V is never used"}),
    "06_overlapped_ring": (4, SMALL, {"step-too-few": "N - 1 steps: the last parcel of K,V is never used"}),
    "07_backward": (1, f"{SMALL} --block 8", {
        "none": "", "no-delta": "no delta", "missing-scale": "dK without the scale",
        "tile-lse": "the backward uses the lse of each step"}),
    "08_ring_backward": (4, SMALL, {
        "hop-too-few": "dK,dV stop one hop before their owner, or one behind it", "none": "",
        "stay-local": "dK,dV are summed where they are computed",
        "shard-delta": "delta is formed with the output over the rank's own shard"}),
    "10_ulysses_and_hybrid": (4, "--seq 32 --dim 16 --heads 4", {
        "none": "", "local-heads": "ALiBi slopes or sinks are looked up by a head's number on its rank",
        "first-replica": "dK,dV are of the first query head of a group"}),
    "12_masks_bias_dropout": (4, "--seq 24", {"none": ""}),
}


def named(program, ranks, flags, mutant):
    with tempfile.TemporaryDirectory() as folder:
        command = [MPIRUN, "-n", str(ranks), BUILD / "lessons" / program, *flags.split(), "--mutant", mutant]
        subprocess.run(command, env={**os.environ, "RING_ATTENTION_HAND_OVER": folder}, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=100)
        command = [sys.executable, SOURCE / "lessons/name_mistake.py", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        files, said = len(list(Path(folder).iterdir())), (done.stdout + done.stderr).strip()
        if mutant == "none" and not all(diagnose(answers, Options(pairs=False, lists_not_tested=False)).right
                                        for answers in answers_in(Path(folder)).values()):
            said += "a right ring is called wrong"
        return files, said


wrong = 0
for name, (number, options, mutants) in PROGRAMS.items():
    for mistake, says in list(mutants.items())[: None if LONG else not name.startswith("12")]:
        files, said = named(name, number, options, mistake)
        holds = files >= number and (f" match a ring with this mistake: {says}" in said if says else not said)
        print(f"{'ok  ' if holds else 'FAIL'} {name} {mistake}: {said}", flush=True)
        wrong += not holds
sys.exit(1 if wrong else 0)
