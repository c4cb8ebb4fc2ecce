"""The functions of ring_attention for PyTorch tensors, on the CPU or on a GPU, with gradients.

    from ring_attention.torch import scaled_dot_product_attention, ring_attention

`scaled_dot_product_attention` takes the arguments of PyTorch's function of this name and runs on one process;
`ring_attention` takes the arguments of ring_attention.ring_attention and runs on all ranks. Tensors are float64 (on the
CPU), float32, float16 or bfloat16. The CPU computes with float16 and bfloat16 in float32; a GPU computes with them directly,
on PyTorch's current stream. All tensors of a call are on one device. Gradients of gradients are not possible.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.autograd.function import once_differentiable

import ring_attention as numpy_api

__all__ = ["attention", "ring_attention", "scaled_dot_product_attention"]


#: torch.compile makes no graph of what it decorates. (PyTorch before 2.1 has no name for it.)
_not_compiled = torch.compiler.disable if hasattr(torch, "compiler") else lambda function: function


def _given(tensor):
    """The tensor as the functions of ring_attention take it."""
    if tensor is None:
        return None
    return tensor.detach().numpy() if tensor.device.type == "cpu" else tensor.detach()


def _tensor(result):
    return torch.from_numpy(result) if isinstance(result, np.ndarray) else result


class _Attention(torch.autograd.Function):
    """`forward` and `backward` are functions of ring_attention; `words` are their keywords."""

    @staticmethod
    def forward(context, forward, backward, words, q, k, v, bias, sink):
        out, lse = map(_tensor, forward(*map(_given, (q, k, v)), bias=_given(bias), sink=_given(sink), **words))
        context.save_for_backward(q, k, v, bias, sink, out, lse)
        context.call = backward, words
        context.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(context, grad_out, _):
        q, k, v, bias, sink, out, lse = context.saved_tensors
        backward, words = context.call
        gradients = backward(*map(_given, (grad_out.to(q.dtype), q, k, v, out, lse)), bias=_given(bias),
                             sink=_given(sink), **words)
        of_sink = None if sink is None else _tensor(gradients.sink).to(sink.dtype)
        of_bias = None if bias is None else _tensor(gradients.bias)
        return (None, None, None, *(_tensor(gradient).to(q.dtype) for gradient in gradients[:3]), of_bias, of_sink)


@_not_compiled
def _apply(forward, backward, words, q, k, v, bias, sink):
    if "stream" in words:
        raise ValueError("stream: tensors are computed on PyTorch's current stream; torch.cuda.stream() sets it")
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
    sink = None if sink is None else sink.cpu()
    out, lse = _Attention.apply(forward, backward, words, q, k, v, bias, sink)
    return out.to(given), lse


def attention(q, k, v, *, bias=None, sink=None, **words):
    """ring_attention.attention for tensors: (out, lse), with the gradients of q, k, v, bias and sink through out."""
    return _apply(numpy_api.attention, numpy_api.attention_backward, words, q, k, v, bias, sink)


def ring_attention(q_shard, k_shard, v_shard, *, seq, bias=None, sink=None, **words):
    """ring_attention.ring_attention for tensors: (out, lse). Collective, and so is its part of backward().

    The gradients are those of the sum of all ranks' losses. On every rank the gradient of a sink is the sum over all ranks.
    """
    kernel = words.pop("kernel", None)
    words["seq"] = seq

    def forward(*arrays, **keywords):
        return numpy_api.ring_attention(*arrays, kernel=kernel, **keywords)

    def backward(*arrays, **keywords):
        if kernel is not None:
            raise RuntimeError("a user's kernel has no backward")
        return numpy_api.ring_attention_backward(*arrays, **keywords)

    return _apply(forward, backward, words, q_shard, k_shard, v_shard, bias, sink)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False, **words):
    """torch.nn.functional.scaled_dot_product_attention on this process.

    query [..., H, L, E]; key and value [..., Hkv, S, E], with Hkv = H unless enable_gqa. attn_mask: bool (True: visible)
    or a float bias, of any shape that broadcasts to [..., H, L, S]. As in PyTorch, is_causal aligns the first query with
    the first key. Dropout drops different pairs than PyTorch; `seed` decides which. Further keywords of ring_attention are
    possible: window, documents, alibi, sink, seed, threads, check. A query that sees no key has out = 0.
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
