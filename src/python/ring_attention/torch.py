"""The functions of ring_attention for PyTorch tensors, on the CPU or on a GPU, with gradients.

    from ring_attention.torch import scaled_dot_product_attention, ring_attention

`scaled_dot_product_attention` takes the arguments of PyTorch's function of this name and runs on one process;
`ring_attention` takes the arguments of ring_attention.ring_attention and runs on all ranks. Tensors are float64 (on the
CPU), float32, float16 or bfloat16. The CPU computes with float16 and bfloat16 in float32; a GPU computes with them directly,
on PyTorch's current stream. All tensors of a call are on one device. Gradients of gradients are not possible.

The calls are operators of PyTorch, torch.ops.ring_attention, which torch.compile, torch.export and vmap take. This needs
PyTorch 2.4.
"""

from __future__ import annotations

import functools
import weakref

import numpy as np
import torch

import ring_attention as numpy_api
from ring_attention._arrays import tile_of
from ring_attention._masks import pairs_of, window_of

__all__ = ["attention", "ring_attention", "scaled_dot_product_attention"]

_OF_RINGS = {"placement": ("str", "zigzag"), "parallel": ("str", "ring"), "ulysses": ("int", 1),
             "transport": ("str", "overlapped"), "sink_gradient": ("str", "share")}
#: The type of each keyword in an operator's schema, and its default. Without `seq` the call is one of one process.
_WORDS = {"causal": ("bool", False), "window": ("int[]?", None), "prefix": ("int?", None), "blocks": ("int[]", []),
          "sink_tokens": ("int?", None), "global_tokens": ("int[]", []), "chunk": ("int?", None),
          "alibi": ("bool", False), "scale": ("float?", None),
          "softcap": ("float?", None), "dropout": ("float", 0.0), "seed": ("int", 0), "q_offset": ("int?", None),
          "same_bits": ("int", 0), "threads": ("int", 0), "check": ("bool", False), "seq": ("int[]", []), "ranks": ("str", ""),
          **_OF_RINGS}
_PAIRS = ("blocks", "global_tokens")  # of begin and end, flat in a schema
_SCHEMA = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sink, Tensor? documents, Tensor? intervals, " + ", ".join(
    f"{kind} {name}" for name, (kind, _) in _WORDS.items())
_ranks = weakref.WeakValueDictionary()  # what comm= and group= name, unless PyTorch knows it by name


def _array(tensor):
    """The tensor as the functions of ring_attention take it."""
    if tensor is None:
        return None
    return tensor.detach().contiguous().numpy() if tensor.device.type == "cpu" else tensor.detach()


def _tensor(result):
    return torch.from_numpy(result) if isinstance(result, np.ndarray) else result


def _call(which, arrays, bias, sink, documents, intervals, words, **more):
    """The function of ring_attention, with the keywords of an operator."""
    named = dict(zip(_WORDS, words), bias=_array(bias), sink=_array(sink), intervals=_array(intervals), **more,
                 documents=None if documents is None else documents.tolist())
    for name in _PAIRS:
        named[name] = np.reshape(named[name], (-1, 2)) if named[name] else None
    seq, ranks = named.pop("seq"), named.pop("ranks")
    named["placement"] = _placement_of(named["placement"])
    if not seq:
        named = {name: word for name, word in named.items() if name not in _OF_RINGS}
    else:
        which, named["seq"] = "ring_" + which, tuple(seq)
        if which == "ring_attention":
            del named["sink_gradient"]
        kind, _, name = ranks.partition(" ")
        if kind == "named":
            named["group"] = torch.distributed.distributed_c10d._resolve_process_group(name)
        elif kind:
            named[kind] = _ranks[ranks]
    with torch.profiler.record_function("ring_attention." + which):
        return getattr(numpy_api, which)(*map(_array, arrays), **named)


@torch.library.custom_op("ring_attention::forward", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def _forward(q, k, v, bias, sink, documents, intervals, *words):
    out, lse = _call("attention", (q, k, v), bias, sink, documents, intervals, words)
    return _tensor(out), _tensor(lse)


@_forward.register_fake
def _(q, k, v, *_):
    kind = q.dtype if q.device.type == "cpu" else torch.float32
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=kind), q.new_empty(q.shape[:-1], dtype=kind)


@torch.library.custom_op(
    "ring_attention::backward", mutates_args=(),
    schema=f"(Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, {_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def _backward(grad_out, grad_lse, out, lse, q, k, v, bias, sink, documents, intervals, *words):
    gradients = _call("attention_backward", (grad_out, q, k, v, out, lse), bias, sink, documents, intervals, words,
                      grad_lse=_array(grad_lse))
    return tuple(q.new_empty(0) if like is None else _tensor(one).to(like.dtype)
                 for one, like in zip(gradients, (q, k, v, bias, sink)))


@_backward.register_fake
def _(_grad_out, _grad_lse, _out, _lse, q, k, v, bias, sink, *_):
    return tuple(q.new_empty(0) if like is None else like.new_empty(like.shape) for like in (q, k, v, bias, sink))


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.words = inputs[7:]
    if inputs[0].device.type != "cpu":
        ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, grad_out, grad_lse):
    *arrays, out, lse = ctx.saved_tensors
    grad_lse = None if out.device.type != "cpu" else grad_lse
    gradients = _backward(grad_out.to(arrays[0].dtype), grad_lse, out, lse, *arrays, *ctx.words)
    return *(None if like is None else one for one, like in zip(gradients, arrays)), *[None] * (2 + len(_WORDS))


_forward.register_autograd(_differentiate, setup_context=_keep)


def _one_by_one(operator):
    def mapped(info, dimensions, *arguments):
        results = [operator(*(array.select(axis, i) if isinstance(axis, int) else array for array, axis in zip(arguments, dimensions)))
                   for i in range(info.batch_size)]
        return tuple(map(torch.stack, zip(*results))), (0,) * len(results[0])

    operator.register_vmap(mapped)


_one_by_one(_forward)
_one_by_one(_backward)


def _name_of(comm, group):
    """What an operator is told of comm= and group=."""
    if comm is None and group is None:
        return ""
    if comm is not None and group is not None:
        raise TypeError("comm and group: give one of them")
    if torch.distributed.is_available():
        if isinstance(group, getattr(torch.distributed, "DeviceMesh", ())) and group.ndim == 1:
            group = group.get_group()
        if isinstance(group, torch.distributed.ProcessGroup):
            return "named " + group.group_name
    kind, given = ("comm", comm) if group is None else ("group", group)
    try:
        _ranks[f"{kind} {id(given)}"] = given
    except TypeError:  # such as a list, which no weak reference can name
        numpy_api.rank(comm, group)  # its error says what is due
        raise
    return f"{kind} {id(given)}"


def _text_of(placement):
    """What an operator is told of a placement: a word, or the ranges of balanced()."""
    shards = (",".join(f"{begin}-{end}" for begin, end in placement.ranges(rank)) for rank in range(placement.ranks))
    return f"{placement.pieces}:" + ";".join(shards)


@functools.lru_cache(8)
def _placement_of(text):
    """The inverse of _text_of; a word stays."""
    pieces, colon, shards = text.partition(":")
    if not colon:
        return text
    return numpy_api._core.Placement([[tuple(map(int, both.split("-"))) for both in shard.split(",") if both]
                                      for shard in shards.split(";")], int(pieces))


def _apply(q, k, v, bias, sink, documents, words):
    intervals = words.pop("intervals", None)
    if unknown := [word for word in words if word not in _WORDS]:
        raise TypeError(f"{unknown[0]}: there is no such keyword" + (
            ": tensors are computed on PyTorch's current stream; torch.cuda.stream() sets it" if "stream" in unknown else ""))
    for name, tensor in (("k", k), ("v", v), ("bias", bias)):
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device} and q is on {q.device}: give tensors of one device")
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q is on {q.device}: give tensors of the CPU or of a CUDA device")
    given = q.dtype
    if given in (torch.float16, torch.bfloat16):
        if q.device.type == "cpu":
            q, k, v = (tensor.float() for tensor in (q, k, v))
        bias = None if bias is None else bias.float()
    sink = None if sink is None else torch.as_tensor(sink).cpu()
    documents, intervals = (None if of_mask is None else torch.as_tensor(of_mask).cpu() for of_mask in (documents, intervals))
    if "same_bits" in words:
        words["same_bits"] = tile_of(words["same_bits"])
    if words.get("window") is not None:
        words["window"] = list(window_of(words["window"]))
    if isinstance(words.get("placement"), numpy_api._core.Placement):
        words["placement"] = _text_of(words["placement"])
    for name in _PAIRS:
        words[name] = [position for pair in pairs_of(name, words.get(name)) for position in pair]
    out, lse = _forward(q, k, v, bias, sink, documents, intervals, *(words.get(name, default) for name, (_, default) in _WORDS.items()))
    return out.to(given), lse


def attention(q, k, v, *, bias=None, sink=None, documents=None, **words):
    """ring_attention.attention for tensors: (out, lse), with the gradients of q, k, v, bias and sink.

    documents: a list, or a tensor of integers such as cu_seqlens, with or without the leading 0. intervals: an array, or a
    tensor of integers.
    """
    return _apply(q, k, v, bias, sink, documents, words)


def ring_attention(q_shard, k_shard, v_shard, *, seq, bias=None, sink=None, documents=None, kernel=None, comm=None, group=None,
                   **words):
    """ring_attention.ring_attention for tensors: (out, lse). Collective, and so is its part of backward().

    The gradients are those of the sum of all ranks' losses; of a sink each rank gets its share, as of any parameter. A
    `kernel` has no gradients.
    """
    if kernel is not None:
        return tuple(map(_tensor, numpy_api.ring_attention(*map(_array, (q_shard, k_shard, v_shard)), seq=seq, bias=_array(bias),
                                                           sink=_array(sink), documents=documents, kernel=kernel, comm=comm,
                                                           group=group, **words)))
    words["seq"] = [seq, seq] if isinstance(seq, int) else list(seq)
    words["ranks"] = _name_of(comm, group)
    return _apply(q_shard, k_shard, v_shard, bias, sink, documents, words)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False, **words):
    """torch.nn.functional.scaled_dot_product_attention on this process.

    query [..., H, L, E]; key [..., Hkv, S, E] and value [..., Hkv, S, Ev], with Hkv = H unless enable_gqa. attn_mask: bool (True: visible)
    or a float bias, of any shape that broadcasts to [..., H, L, S]. As in PyTorch, is_causal aligns the first query with
    the first key. Dropout drops different pairs than PyTorch; `seed` decides which. Further keywords of ring_attention are
    possible: window, documents and the other masks, alibi, sink, seed, threads, check. A query that sees no key has out = 0.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask and is_causal: give one of them")
    if not enable_gqa and query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        raise ValueError(f"query has {query.shape[-3]} heads and key {key.shape[-3]}: this needs enable_gqa=True")
    bias = attn_mask
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            bias = torch.zeros(attn_mask.shape, dtype=query.dtype, device=attn_mask.device).masked_fill(~attn_mask, -torch.inf)
        bias = bias.expand(*bias.shape[:-2], query.shape[-2], key.shape[-2])
    many = query.dim() > 4  # further dimensions in front are batches
    if many:
        batches = query.shape[:-3]
        if bias is not None and bias.dim() > 3:
            bias = bias.expand(*batches, *bias.shape[-3:]).flatten(0, -4)
        query, key, value = (tensor.flatten(0, -4) for tensor in (query, key, value))
    if is_causal:
        words["q_offset"] = 0
    out, _ = attention(query, key, value, bias=bias, causal=is_causal, dropout=dropout_p, scale=scale, **words)
    return out.unflatten(0, batches) if many else out
