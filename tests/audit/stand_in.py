"""A stand-in for flash_attn 2.8 in PyTorch, for the CPU: the functions that public rings call, with its arguments and its
results: masks aligned at the bottom right, out = 0 and lse = inf in a row without keys, gradients written in place, and
lse [heads, tokens] of packed documents. No dropout. stand_in_test.py compares it with attention in double."""

import importlib.machinery
import sys
import types

import torch


def _scores(q, k, v, scale, causal, left, right, softcap, slopes):
    """Of [batch, tokens, heads, dim]: scores [batch, heads, queries, keys], K,V of each query head, query heads of a KV head"""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = scale * torch.einsum("bqhd,bkhd->bhqk", q.to(exact), k.to(exact))
    query = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1])
    if causal:
        right = 0
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    if softcap or slopes is not None:
        raise NotImplementedError("softcap and ALiBi")
    return scores.masked_fill(~seen, -torch.inf), k.to(exact), v.to(exact), group


def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
                        alibi_slopes=None, return_softmax=False):
    scores, _, v, _ = _scores(q, k, v, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes)
    lse = torch.logsumexp(scores, -1)
    empty = torch.isinf(lse)
    p = torch.exp(scores - lse.masked_fill(empty, 0)[..., None])
    return torch.einsum("bhqk,bkhd->bqhd", p, v).to(q.dtype), lse.masked_fill(empty, torch.inf), None, None


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left=-1,
                         window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None):
    scores, keys, values, group = _scores(q, k, v, softmax_scale, causal, window_size_left, window_size_right, softcap,
                                          alibi_slopes)
    p = torch.exp(scores - softmax_lse[..., None])
    dout = dout.to(p.dtype)
    delta = (dout * out).sum(-1).transpose(1, 2)[..., None]
    ds = softmax_scale * p * (torch.einsum("bqhd,bkhd->bhqk", dout, values) - delta)
    dq.copy_(torch.einsum("bhqk,bkhd->bqhd", ds, keys))
    for into, of_pairs, of_queries in ((dk, ds, q.to(p.dtype)), (dv, p, dout)):
        into.copy_(torch.einsum("bhqk,bqhd->bkhd", of_pairs, of_queries).unflatten(2, (-1, group)).sum(3))


def _documents(cu_seqlens_q, cu_seqlens_k):
    """The slices of queries and of keys of each document that has both."""
    for first, end, first_key, end_key in zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:]):
        if end > first and end_key > first_key:
            yield slice(first, end), slice(first_key, end_key)


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                               causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
                               return_softmax=False, block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False):
    out = torch.zeros_like(q)
    lse = torch.full((q.shape[1], q.shape[0]), torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    for at, keys in _documents(cu_seqlens_q, cu_seqlens_k):
        out[at], lse[:, at] = (x[0] for x in _flash_attn_forward(
            q[None, at], k[None, keys], v[None, keys], dropout_p, softmax_scale, causal, window_size_left,
            window_size_right, softcap, alibi_slopes)[:2])
    return out, lse, None, None


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1,
                                softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None, zero_tensors=False):
    for gradient in (dq, dk, dv):
        gradient.zero_()
    for at, keys in _documents(cu_seqlens_q, cu_seqlens_k):
        _flash_attn_backward(dout[None, at], q[None, at], k[None, keys], v[None, keys], out[None, at],
                             softmax_lse[None, :, at], dq[None, at], dk[None, keys], dv[None, keys], dropout_p,
                             softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes)


def install():
    """`import flash_attn` finds the stand-in from now on."""
    package, interface, padding = (types.ModuleType(name) for name in (
        "flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding"))
    for function in (_flash_attn_forward, _flash_attn_backward, _flash_attn_varlen_forward, _flash_attn_varlen_backward):
        setattr(interface, function.__name__, function)
    for name in ("flash_attn_func", "flash_attn_varlen_func"):
        setattr(interface, name, None)  # imported by packages, and not called here
        setattr(package, name, None)
    padding.pad_input = padding.unpad_input = padding.index_first_axis = None
    package.flash_attn_interface, package.__version__ = interface, "2.8.3"
    for module in (package, interface, padding):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
