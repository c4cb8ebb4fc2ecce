"""Public rings through `ring_attention.diagnose`, over gloo: torchrun --nproc-per-node 4 audit.py OTHERS [NAME ...]

OTHERS is the folder of get.sh. Prints the report of each ring that is named, or of all; exits with 1 if a verdict is another
than docs/audit.md says."""

import os
import sys
import warnings

import ring_attention
import rings
import torch
import torch.distributed as dist


def mistakes(found):
    """right, or the ids of what diagnose names, of out and then of the gradients"""
    if found.right:
        return "right"
    if found.json["not_the_same_twice"]:
        return "not the same twice"
    named = [mistake for part in ("forward", "backward") if found.json[part]["state"] == "wrong"
             for mistake in found.json[part]["explanations"][0]["mistakes"]]
    rounded = [f"rounded {name}" for name in found.json["rounded_gradients"]]
    return " ".join(dict.fromkeys(named + rounded)) or "not explained"


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rings.OTHERS, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(rings.RINGS)
    sys.path[:0] = [f"{rings.OTHERS}/packages"]
    changed = []
    for name in names:
        make, project, says, words = rings.RINGS[name]
        try:
            found = ring_attention.diagnose(make(), group=dist.group.WORLD, **words)
            verdict, report = mistakes(found), found.report
        except Exception as error:  # whatever a package raises: its row says so
            verdict = report = f"{type(error).__name__}: {error}"
        if verdict != says:
            changed.append(name)
        if dist.get_rank() == 0:
            print(f"== {name} of {project}: {verdict}\n{report}\n", flush=True)
    if dist.get_rank() == 0:
        print("not as expected: " + ", ".join(changed) if changed else f"{len(names)} as expected")
    dist.destroy_process_group()
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
