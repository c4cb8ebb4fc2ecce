"""What each rank of models_test.py does: models of transformers and of PyTorch, recorded in one process and on the ranks."""

import importlib.util
import math
import tempfile

import harness
import ring_attention as ra
import torch
import torch.distributed as dist
import transformers as t
from ring_attention_diagnose import judge_model, record
from transformers_program import make

SEQ, WINDOW = 48, 20
ATTENTION = {}  # of the ranks, by hand: the group, the positions of all, and which mistake is in which layer


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        of_ranks = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(of_ranks, x.contiguous(), group=group)
        return torch.stack(of_ranks)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient[dist.get_rank(context.group)], None


def by_hand(module, q, k, v, mask=None, scaling=None, sliding_window=None, s_aux=None, **_):
    """An all-gather of K,V: another context parallelism than that of this project."""
    group, shards, broken = ATTENTION["group"], ATTENTION["shards"], ATTENTION["broken"].get(module.layer_idx)
    mine = keys = torch.tensor(shards[dist.get_rank(group)])
    if broken != "no ring":
        keys, (k, v) = torch.tensor(sum(shards, [])), (torch.cat(list(Gather.apply(x, group)), 2) for x in (k, v))
    far, groups = mine[:, None] - keys, q.shape[1] // k.shape[1]
    k, v = (x.repeat(1, groups, 1, 1) if broken == "heads" else x.repeat_interleave(groups, 1) for x in (k, v))
    scores = (q @ k.mT * scaling).masked_fill((far < 0) | (far >= (sliding_window or SEQ) + (broken == "window")), -math.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux[:, None, None].expand(*scores.shape[:3], 1)], 3)
    return (scores.softmax(3)[..., :len(keys)] @ v).transpose(1, 2).contiguous(), None


t.AttentionInterface.register("by_hand", by_hand)


class Convolution(torch.nn.Module):
    """Over three tokens."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(64, 64, 3, padding=2, groups=64)

    def forward(self, x):
        return self.conv(x.mT)[..., :x.shape[1]].mT


def on_ranks_by_hand(model, tokens, folder, group, how):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    model.set_attn_implementation("by_hand")
    mine = torch.tensor(ATTENTION["shards"][rank])
    with record(model, folder, mine, rank) as run:
        places = torch.arange(len(mine)) if how == "local rotary" else mine
        logits = model(tokens[:, mine], position_ids=places[None], use_cache=False).logits
        after = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)[0, mine]
        loss = torch.nn.functional.cross_entropy(logits[0], after, reduction="sum") / (SEQ - 1)
        run.loss = size * loss if how == "loss N times" else loss
        run.loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=group)


def by_ringmaster(model, tokens, folder, group, how):
    """A ring of another project, contiguous, with its own sharding."""
    import ringmaster
    from ringmaster.shard import shard_batch

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    config = ringmaster.RingmasterConfig(size=size, ring_size=size, rotate_method="alltoall")
    model.set_attn_implementation(ringmaster.setup(config, device_type="cpu").attn_implementation)
    batch, _ = shard_batch({"input_ids": tokens, "labels": tokens}, cp_rank=rank, cp_size=size)
    with record(model, folder, batch["position_ids"][0], rank) as run:
        if "local rotary" in how:
            batch["position_ids"] = torch.arange(SEQ // size)[None]
        run.loss = model(**batch, num_items_in_batch=SEQ - 1, use_cache=False).loss
        run.loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)


def judged(folder, name, group, broken, how):
    """The json of judge_model. broken: the mistakes of layers; how: another mistake, or "ring" for this project's, or
    "ringmaster"."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    tokens = torch.randint(0, 64, (1, SEQ), generator=torch.Generator().manual_seed(1))
    model = make(name)
    if how == "convolution":
        model.model.layers[1].mlp = Convolution()
    model.set_attn_implementation("eager")
    shards = [ra.positions(SEQ, group=group, rank=r).tolist() for r in range(size)]
    ATTENTION.update(group=group, shards=shards, broken=broken)
    if how == "ring":  # as the page shows it
        page = harness.SOURCE / "docs/diagnose.md"
        text = next(block for block in page.read_text(encoding="utf-8").split("```py\n") if "with record(" in block)
        words = {"model": model, "tokens": tokens, "positions": shards[rank], "rank": rank, "group": group}
        exec(text.split("```")[0].replace('"check"', repr(folder)), words)
    else:
        with record(model, folder) as run:
            run.loss = model(tokens, labels=tokens, use_cache=False).loss
            run.loss.backward()
        (by_ringmaster if "ringmaster" in how else on_ranks_by_hand)(model, tokens, folder, group, how)
    dist.barrier(group)
    return judge_model(folder) if rank == 0 else None


class Own(torch.nn.Module):
    """An attention (q, k, v) -> out that is not of transformers."""

    layer_idx = 0

    def forward(self, q, k, v):
        if ATTENTION:
            return by_hand(self, q, k, v, scaling=0.25)[0].transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class OwnModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.attention = torch.nn.Linear(16, 3 * 64), Own()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return self.attention(q, k, v) + q + k + v  # tensors that have other users, with gradients of their own


def judged_own(folder, group, broken, causal=True):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    model, x = OwnModel(), torch.randn(2, SEQ, 16, generator=torch.Generator().manual_seed(1))
    shards = [list(range(SEQ))[r::size] for r in range(size)]
    for positions in (None, shards[rank]):
        ATTENTION.clear()
        if positions is not None:
            ATTENTION.update(group=group, shards=shards, broken=broken)
        with record(model, folder, positions, rank, attention={"attention": {"causal": causal}}) as run:
            run.loss = (model(x if positions is None else x[:, positions]) ** 2).sum()
            run.loss.backward()
            for parameter in model.parameters() if positions is not None else ():
                dist.all_reduce(parameter.grad, group=group)
    dist.barrier(group)
    return judge_model(folder) if rank == 0 else None


CASES = {
    "llama": ("llama", {}, ""), "gemma3": ("gemma3", {}, ""), "gptoss": ("gptoss", {}, ""),
    "llama, ring": ("llama", {}, "ring"), "gemma3, ring": ("gemma3", {}, "ring"), "gptoss, ring": ("gptoss", {}, "ring"),
    "no ring": ("llama", {1: "no ring"}, ""), "window": ("gemma3", {3: "window"}, ""), "heads": ("gptoss", {0: "heads"}, ""),
    "local rotary": ("llama", {}, "local rotary"), "convolution": ("llama", {}, "convolution"),
    "loss N times": ("gemma3", {}, "loss N times"),
}
if importlib.util.find_spec("ringmaster"):
    CASES |= {"ringmaster": ("llama", {}, "ringmaster"),
              "ringmaster, local rotary": ("llama", {}, "ringmaster, local rotary")}


def every(rank, group):
    """(right, report, json) of each case, on rank 0."""
    torch.set_num_threads(1)
    folders = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folders, group=group)
    found = {case: judged(f"{folders[0]}/{case}", name, group, *words) for case, (name, *words) in CASES.items()}
    found["own"] = judged_own(f"{folders[0]}/own", group, {})
    found["other words"] = judged_own(f"{folders[0]}/other_words", group, {}, causal=False)
    yield {**found, "own, no ring": judged_own(f"{folders[0]}/own_no_ring", group, {0: "no ring"})}
