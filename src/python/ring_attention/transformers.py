"""Unmodified models of transformers on a ring of ranks: attn_implementation="ring".

    from ring_attention.transformers import shard, sum_gradients

    loss = model(**shard(model, input_ids, labels, group=group)).loss  # of this rank's tokens; the sum over ranks is the loss
    loss.backward()
    sum_gradients(model, group=group)

`shard` prepares a model for one sequence and returns this rank's part of its arguments. What a model asks of its attention and
a ring cannot do is a NotImplementedError that names it. A model keeps no cache, so generate() is not possible: `shard` is for
training, and for the logits of a long prompt.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface, AttentionMaskInterface

import ring_attention as numpy_api

from ._masks import boundaries
from .torch import ring_attention

__all__ = ["shard", "sum_gradients"]

_sequences = {}  # by id of a configuration: (the configuration, the keywords of the ring)
#: What models pass on to every attention and does not change it.
_OF_OTHERS = {"cache_position", "labels", "logits_to_keep", "num_items_in_batch", "output_hidden_states", "output_router_logits",
              "past_key_values", "position_embeddings", "position_ids", "return_dict", "shift_labels", "use_cache"}


def _refuse(what):
    raise NotImplementedError(f'attn_implementation="ring": {what}')


def _sequence_of(config):
    if id(config) not in _sequences:
        raise RuntimeError('attn_implementation="ring": first call ring_attention.transformers.shard(model, ...)')
    return _sequences[id(config)][1]


def _attention(module, query, key, value, attention_mask=None, *, scaling=None, dropout=0.0, sliding_window=None, s_aux=None,
               softcap=None, is_causal=None, **others):
    for name, given in others.items():
        if given is not None and given is not False and name not in _OF_OTHERS:
            _refuse(f"the model asks for {name}, which the ring does not have")
    if attention_mask is not None and (attention_mask.dim() or int(attention_mask) != (sliding_window or 0)):
        _refuse("the mask of the model is not the one that its attention asks for by sliding_window")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    right = 0 if causal else -1 if sliding_window is None else sliding_window - 1
    words = dict(_sequence_of(module.config))
    words["seed"] += getattr(module, "layer_idx", 0)
    out, _ = ring_attention(query, key, value, causal=causal, scale=scaling, softcap=softcap, sink=s_aux,
                            dropout=dropout, **words,
                            window=None if sliding_window is None else (sliding_window - 1, right))
    return out.transpose(1, 2).contiguous(), None


def _mask(*, config, mask_function, attention_mask=None, local_size=None, **_):
    """The window of a mask that a ring has, as a tensor without dimensions: 0 for none."""
    if attention_mask is not None and not attention_mask.all():
        _refuse("padding: give documents, of which the last is the padding")
    places = torch.linspace(0, _sequence_of(config)["seq"] - 1, 97).long().unique()
    query = torch.cat([places, places, places])[:, None]
    key = torch.cat([places, (places - (local_size or 1)).clamp(0), (places - (local_size or 1) + 1).clamp(0)])[None]
    due = (key <= query) & (key > query - (local_size or len(places) + int(places.max())))
    first = torch.tensor(0)
    try:
        same = torch.equal(mask_function(first, first, query, key).expand(due.shape), due)
    except (IndexError, RuntimeError):  # it depends on the tokens
        same = False
    if not same:
        _refuse("the model has a mask that is neither causal nor a sliding window")
    return torch.tensor(local_size or 0)


AttentionInterface.register("ring", _attention)
AttentionMaskInterface.register("ring", _mask)


def shard(model, input_ids, labels=None, *, documents=None, seed=0, placement="zigzag", **words):
    """Prepares the next calls of the model, for this sequence. Returns this rank's part of its arguments.

    input_ids, labels  [batch, seq], the same on all ranks
    documents          boundaries of packed sequences, (0,) ..., seq, as cu_seqlens; positions begin again in each
    seed               of the dropout of attention: another one in each step
    words              of ring_attention: parallel, ulysses, group or comm, threads, same_bits
    """
    seq = input_ids.shape[1]
    bounds = [0, seq] if documents is None else boundaries(documents)
    words = dict(words, seq=seq, placement=placement, documents=documents, seed=seed)
    places = {name: words[name] for name in ("placement", "parallel", "ulysses", "group", "comm", "same_bits") if name in words}
    mine = torch.from_numpy(numpy_api.positions(seq, **places, documents=documents if words.get("same_bits") else None))
    model.set_attn_implementation("ring")
    for module in model.modules():
        if (config := getattr(module, "config", None)) is not None:
            _sequences[id(config)] = config, words
    position = torch.cat([torch.arange(end - begin) for begin, end in zip(bounds, bounds[1:])])
    # With an attention_mask transformers does not look for packed sequences in the positions, which are those of a shard.
    part = {"input_ids": input_ids[:, mine], "position_ids": position[mine].expand(len(input_ids), -1), "use_cache": False,
            "attention_mask": torch.ones(len(input_ids), len(mine), dtype=torch.long)}
    if labels is not None:
        after = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        after[:, [end - 1 for end in bounds[1:-1] if end]] = -100  # the next token is another document's
        part.update(labels=labels[:, mine], shift_labels=after[:, mine].contiguous(),
                    num_items_in_batch=(after != -100).sum())
    return part


def sum_gradients(model, *, comm=None, group=None):
    """Adds the gradients of all ranks, on every rank. Collective, in small models; larger ones use torch.distributed."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            total = numpy_api.all_reduce(mine.float().cpu().numpy(), comm=comm, group=group)
            parameter.grad = torch.from_numpy(total).to(parameter)
