"""One rank of a ring: ring.py RANK RANKS IN OUT. This start sends no message: a rank attends to its own keys alone."""

import sys

import numpy as np

folder, out = sys.argv[3], sys.argv[4]
case = dict(line.split(maxsplit=1) for line in open(f"{folder}/case.txt", encoding="utf-8"))
rank, ranks, port = int(case["rank"]), int(case["ranks"]), int(case["port"])
positions = [np.array(case[f"positions_{of}"].split(), int) for of in range(ranks)]  # of every rank's tokens
q, k, v = (np.load(f"{folder}/{name}.npy") for name in "qkv")  # [heads, tokens of this rank, dim]

scores = float(case["scale"]) * q @ k.swapaxes(1, 2)
p = np.exp(scores - scores.max(2, keepdims=True))
np.save(f"{out}/out.npy", p @ v / p.sum(2, keepdims=True))
