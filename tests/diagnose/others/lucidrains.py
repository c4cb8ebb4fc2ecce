"""ring-attention-pytorch (lucidrains) on the cases of a folder, each rank a process of gloo: lucidrains.py FOLDER

It takes the number of ranks from cases.json, and runs full, causal, gqa and large. No test needs the package:
pip install torch ring-attention-pytorch==0.5.20
"""

import json
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def load(place, name, tokens):
    """[1, heads, all tokens, dim] in the file to [1, these tokens, heads, dim]"""
    array = np.load(f"{place}/{name}.npy")[:, :, tokens]
    return torch.tensor(array, dtype=torch.float32).transpose(1, 2).contiguous()


def rank_main(rank, ranks, folder, cases):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    for case in cases:
        place = f"{folder}/{case['name']}"
        mine = case["tokens_of_rank"][rank]

        q, k, v = (load(place, name, mine).requires_grad_() for name in "qkv")
        out = ring_flash_attn(q, k, v, None, case["causal"], 512, ranks > 1, False)
        out.backward(load(place, "dout", mine))
        for name, array in {"out": out, "dq": q.grad, "dk": k.grad, "dv": v.grad}.items():
            np.save(f"{place}/{name}.{rank}.npy", array.detach().numpy())
    dist.destroy_process_group()


def main():
    folder = sys.argv[1]
    with open(f"{folder}/cases.json", encoding="utf-8") as file:
        asked = json.load(file)
    cases = [case for case in asked["cases"] if case["name"] in ("full", "causal", "gqa", "large")]
    ranks = len(cases[0]["tokens_of_rank"])
    mp.spawn(rank_main, (ranks, folder, cases), nprocs=ranks)


if __name__ == "__main__":
    main()
