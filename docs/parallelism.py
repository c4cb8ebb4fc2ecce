"""The tables of docs/parallelism.md: what each way to cut a model sends. Writes them between the page's markers.

`--check` writes nothing, and fails when the page has other tables. Another model or mesh: change EXAMPLE and LINKS.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "parallelism.md"
BEGIN, END = "<!-- tables:begin, by docs/parallelism.py -->", "<!-- tables:end -->"


@dataclass(frozen=True)
class Layer:
    """One layer of a model, the tokens that it is given, and the devices that share them."""

    batch: int
    seq: int
    heads: int
    kv_heads: int
    dim: int
    ffn: int  # hidden numbers of the feed-forward part, which has three matrices
    devices: int
    element: int = 2  # bytes: bf16
    sum_element: int = 4  # bytes of a gradient of K,V that is summed on the way: float
    experts_a_token: int = 2

    @property
    def hidden(self):
        return self.heads * self.dim

    @property
    def parameters(self):  # q and out, k and v, the feed-forward part
        return 2 * self.hidden**2 + 2 * self.hidden * self.kv_heads * self.dim + 3 * self.hidden * self.ffn

    def activations(self, tokens):  # bytes of one vector a token
        return self.batch * tokens * self.hidden * self.element

    def kv(self, tokens, element):  # bytes of K and V
        return 2 * self.batch * tokens * self.kv_heads * self.dim * element


# Bytes that each of n devices sends when the whole array has `size` bytes. (An all-to-all: when a device has `size`.)
def all_gather(size, n):
    return size * (n - 1) // n


reduce_scatter = all_to_all = all_gather


def all_reduce(size, n):  # as a reduce-scatter and an all-gather
    return reduce_scatter(size, n) + all_gather(size, n)


# Bytes that a device sends for one layer: forward, backward.
def data(a):
    return 0, all_reduce(a.parameters * a.element, a.devices)


def sharded_data(a):  # weights before the forward, again before the backward; then the sum of the gradients
    weights = a.parameters * a.element
    return all_gather(weights, a.devices), all_gather(weights, a.devices) + reduce_scatter(weights, a.devices)


def tensor(a):  # after attention and after the feed-forward part
    both = 2 * all_reduce(a.activations(a.seq), a.devices)
    return both, both


def pipeline(a):  # a stage, not a layer
    return a.activations(a.seq), a.activations(a.seq)


def ring(a):
    hop, gradient_hop = a.kv(a.seq // a.devices, a.element), a.kv(a.seq // a.devices, a.sum_element)
    return (a.devices - 1) * hop, (a.devices - 1) * hop + a.devices * gradient_hop


def gathered(a):
    kv = all_gather(a.kv(a.seq, a.element), a.devices)
    return kv, kv + reduce_scatter(a.kv(a.seq, a.sum_element), a.devices)


def ulysses(a):  # q, k, v there and out back; backward: the same four arrays' gradients
    tokens = a.seq // a.devices
    both = all_to_all(2 * a.activations(tokens) + a.kv(tokens, a.element), a.devices)
    return both, both


def expert(a):  # each token's vector to its experts and back
    both = 2 * all_to_all(a.experts_a_token * a.activations(a.seq // a.devices), a.devices)
    return both, both


WAYS = [
    ("data", data, "sequences of the batch", "gradients of the weights: all-reduce, once a step"),
    ("data, sharded (ZeRO-3, FSDP)", sharded_data, "the batch; weights, gradients and optimiser are stored in parts",
     "weights: all-gather before each use; gradients: reduce-scatter"),
    ("tensor", tensor, "weight matrices: heads, and columns of the feed-forward part",
     "activations: two all-reduces a layer, in each direction"),
    ("tensor with Megatron's sequence parallelism", tensor,
     "as tensor; between the products also the tokens of norms and dropout",
     "the same bytes, as reduce-scatter and all-gather; less memory"),
    ("pipeline", pipeline, "layers: a device has some of them", "activations between two stages: once a *stage*"),
    ("context: ring", ring, "the sequence", "K,V round the ring; backward: K,V again, and dK,dV"),
    ("context: all-gather", gathered, "the sequence", "K,V to all, before the compute; dK,dV: reduce-scatter"),
    ("context: Ulysses", ulysses, "the sequence, and heads inside attention",
     "q, k, v and out: all-to-all before and after attention"),
    ("expert", expert, "the experts of a mixture", "each token to its experts and back: two all-to-alls a layer"),
]
EXAMPLE = Layer(batch=1, seq=131072, heads=32, kv_heads=8, dim=128, ffn=14336, devices=8)  # Llama 3 8B, 128K tokens
LINKS = [("A100, NVLink", 312e12, 300e9), ("A100, InfiniBand", 312e12, 12.5e9), ("TPUv4", 275e12, 268e9)]  # F, beta


def smallest_shard(flops, bandwidth, element, group, causal_zigzag=False):
    """c*: a hop of the forward hides behind a step from so many tokens of a shard on."""
    return element * flops / (2 * group * bandwidth) * (2 if causal_zigzag else 1)


def mebibytes(size):
    return f"{size / 2**20:.0f}" if size else "0"


def tables():
    yield "| parallelism | what is cut | what travels | forward, MiB | backward, MiB |"
    yield "|---|---|---|---|---|"
    for name, sent, cut, travels in WAYS:
        yield f"| {name} | {cut} | {travels} | " + " | ".join(map(mebibytes, sent(EXAMPLE))) + " |"
    yield ""
    group = EXAMPLE.heads // EXAMPLE.kv_heads
    yield "| device, link | c*, one query head to a KV head | "f"c*, {group} to one | the same, causal, zigzag |"
    yield "|---|---|---|---|"
    for name, flops, bandwidth in LINKS:
        shards = [smallest_shard(flops, bandwidth, 2, 1), smallest_shard(flops, bandwidth, 2, group),
                  smallest_shard(flops, bandwidth, 2, group, causal_zigzag=True)]
        yield f"| {name} | " + " | ".join(f"{shard:.0f}" for shard in shards) + " |"


def examine():
    """Figures that are known from elsewhere."""
    lesson_05 = Layer(batch=1, seq=512, heads=4, kv_heads=2, dim=32, ffn=0, devices=4, element=4)
    assert 4 * ring(lesson_05)[0] == 512 * 781824 // 509  # 509 tokens: what the lesson counts on all ranks
    assert ring(EXAMPLE)[0] == gathered(EXAMPLE)[0]  # a ring is an all-gather whose parts are used and dropped
    assert abs(smallest_shard(312e12, 300e9, 2, 1) - 1.0e3) < 50  # the paper's table 2
    assert abs(32 * EXAMPLE.parameters + 2 * 128256 * 4096 - 8.03e9) < 1e6  # Llama 3 8B, with its two tables of tokens


def main():
    examine()
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    stored, after = rest.split(END)
    now = "\n" + "\n".join(tables()) + "\n"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(before + BEGIN + now + END + after, encoding="utf-8")
    elif stored != now:
        sys.exit(f"{PAGE} has other tables: run docs/parallelism.py\nnow\n{now}")


main()
