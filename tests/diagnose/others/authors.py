"""The authors' ringattention (JAX) on the cases of a folder, one process with a device for each rank: authors.py FOLDER

It takes the number of ranks from cases.json, and runs full, causal, documents, bias and large. No test needs the
package: pip install jax ringattention==0.1.2
"""

import importlib.util
import json
import os
import sys

import numpy as np

FOLDER = sys.argv[1]
with open(f"{FOLDER}/cases.json", encoding="utf-8") as description:
    ASKED = json.load(description)
RANKS = ASKED["ranks"]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"  # before jax is imported

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def the_ring():
    """Its module for CPUs, without the package's imports for TPUs."""
    package = importlib.util.find_spec("ringattention").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("ringattention_jax", f"{package}/ringattention_jax.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ring_attention


def run(ring_attention, mesh, case):
    place = f"{FOLDER}/{case['name']}"
    q, k, v, dout = (
        jnp.asarray(np.load(f"{place}/{name}.npy").transpose(0, 2, 1, 3), jnp.float32)
        for name in ("q", "k", "v", "dout")
    )
    chunk = case["tokens"] // RANKS
    options = {
        "causal_block_size": 1 if case["causal"] else None,
        "deterministic": True,
        "dropout_rng": None,
        "attn_pdrop": 0.0,
        "query_chunk_size": chunk,
        "key_chunk_size": chunk,
        "dtype": jnp.float32,
        "policy": jax.checkpoint_policies.nothing_saveable,
        "precision": None,
        "prevent_cse": True,
    }
    bias = documents = None
    if case["name"] == "bias":
        bias = jnp.asarray(np.load(f"{place}/bias.npy"), jnp.float32).reshape(1, case["heads"], case["tokens"], -1)
    if case["name"] == "documents":
        begins = np.array(case["cu_seqlens"])
        documents = jnp.asarray(np.searchsorted(begins, np.arange(case["tokens"]), side="right")[None], jnp.int32)

    def shard(q, k, v):
        return ring_attention(q, k, v, bias, documents, None, "sp", True, options)

    tokens = P(None, "sp")
    ring = jax.shard_map(shard, mesh=mesh, in_specs=(tokens, tokens, tokens), out_specs=tokens, check_vma=False)
    out, back = jax.vjp(ring, q, k, v)
    for name, array in zip(("out", "dq", "dk", "dv"), (out, *back(dout)), strict=True):
        np.save(f"{place}/{name}.npy", np.asarray(array))


def main():
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("sp",))
    ring_attention = the_ring()
    for case in ASKED["cases"]:
        if case["name"] in ("full", "causal", "documents", "bias", "large"):
            run(ring_attention, mesh, case)


main()
