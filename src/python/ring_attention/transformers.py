"""Unmodified models of transformers on a ring of ranks: attn_implementation="ring".

    from ring_attention.transformers import shard, sum_gradients

    loss = model(**shard(model, input_ids, labels, group=group)).loss  # of this rank's tokens; the sum over ranks is the loss
    loss.backward()
    sum_gradients(model, group=group)

`shard` prepares a model for one sequence and returns this rank's part of its arguments. What a model asks of its attention and
a ring cannot do is a NotImplementedError that names it. generate() goes on after a prompt of which each rank has some keys:

    cache = RingCache()
    with torch.no_grad():
        model(**shard(model, prompt[:, :-1], cache=cache, group=group))
    tokens = model.generate(prompt, cache=cache)  # on all ranks, and the same on each
"""

from __future__ import annotations

import threading

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicLayer

import ring_attention as numpy_api

from ._masks import boundaries
from .torch import _array, ring_attention

__all__ = ["RingCache", "shard", "sum_gradients"]

_sequences = {}  # by id of a configuration: (the configuration, the keywords of the ring, this rank's positions, a cache?)
_updated = threading.local()  # its layer: the one of a cache whose attention comes next
#: What models pass on to every attention and does not change it.
_OF_OTHERS = {"cache_position", "labels", "logits_to_keep", "num_items_in_batch", "output_hidden_states",
              "output_router_logits", "past_key_values", "position_embeddings", "position_ids", "return_dict", "shift_labels",
              "use_cache"}


def _refuse(what):
    raise NotImplementedError(f'attn_implementation="ring": {what}')


def _sequence_of(config):
    if id(config) not in _sequences:
        raise RuntimeError('attn_implementation="ring": first call ring_attention.transformers.shard(model, ...)')
    return _sequences[id(config)][1:]


def _attention(module, query, key, value, attention_mask=None, *, scaling=None, dropout=0.0, sliding_window=None, s_aux=None,
               softcap=None, is_causal=None, **others):
    for name, given in others.items():
        if given is not None and given is not False and name not in _OF_OTHERS:
            _refuse(f"the model asks for {name}, which the ring does not have")
    local = 0 if attention_mask is None or attention_mask.dim() else int(attention_mask)
    if attention_mask is not None and attention_mask.dim() or max(local, 0) != (sliding_window or 0):
        _refuse("the mask of the model is not the one that its attention asks for by sliding_window")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    right = 0 if causal else -1 if sliding_window is None else sliding_window - 1
    how = {"causal": causal, "scale": scaling, "softcap": softcap, "chunk": -local if local < 0 else None,
           "window": None if sliding_window is None else (sliding_window - 1, right)}
    words, mine, has_cache = _sequence_of(module.config)
    layer, _updated.layer = getattr(_updated, "layer", None), None
    if has_cache and layer is None:
        _refuse("a layer that uses the keys of another one has no cache")
    if layer is not None and layer.has_grown:
        return _attention_of_cache(layer, query, key, value, s_aux, dropout, others.get("position_ids"), words, how), None
    if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:  # by the place in the rows that it was given
        if words["documents"] is not None and words["seq"] >= module.floor_scale:
            _refuse("attn_temperature_tuning of the model counts the tokens of all documents")
        due, given = (torch.log1p(torch.floor((places.to(query.device) + 1.0) / module.floor_scale)) * module.attn_scale + 1
                      for places in (mine, torch.arange(len(mine))))
        query = query * (due / given)[:, None].to(query.dtype)
    words = dict(words, seed=words["seed"] + getattr(module, "layer_idx", 0))
    out, _ = ring_attention(query, key, value, sink=s_aux, dropout=dropout, **words, **how)
    return out.transpose(1, 2).contiguous(), None


def _attention_of_cache(layer, query, key, value, sink, dropout, position_ids, words, how):
    """Attention of the newest tokens, which all ranks have, over a cache that already has them as well."""
    newest = range(layer.length - query.shape[2], layer.length)
    if position_ids is not None and not bool((position_ids == torch.tensor(newest, device=position_ids.device)).all()):
        _refuse("a cache of a ring goes on where it ends, without padding: give it all tokens of the prompt but the last")
    if dropout or query.requires_grad:
        _refuse("a cache has neither dropout nor gradients: model.eval(), torch.no_grad()")
    if chunk := how.pop("chunk"):
        how["documents"] = [*range(0, layer.length, chunk), layer.length]
    arrays = (_array(tensor if tensor.dtype == torch.float64 else tensor.float()) for tensor in (query, key, value))
    ranks = {name: words[name] for name in ("group", "comm", "threads") if name in words}
    out = numpy_api.decode(*arrays, positions=(newest, layer.positions), sink=_array(sink), **ranks, **how).out
    return torch.from_numpy(out).to(query).transpose(1, 2).contiguous()


def _mask(*, config, mask_function, attention_mask=None, local_size=None, q_length=0, q_offset=0, **_):
    """The mask, if a ring has it, as a tensor without dimensions: 0 causal, a window, or a chunk, which is negative."""
    if attention_mask is not None and not attention_mask.all():
        _refuse("padding: give documents, of which the last is the padding")
    end, size = max(_sequence_of(config)[0]["seq"], int(q_offset) + q_length, 1), local_size or 1
    places = torch.cat([torch.linspace(0, end - 1, 97), torch.linspace(0, 3 * (local_size or 0), 13)]).long().unique()
    query = places[:, None]
    key = torch.cat([places, places - size, places - size + 1, places // size * size - 1, places // size * size]).clamp(0)[None]
    causal, first = key <= query, torch.tensor(0)
    masks = {0: causal} if local_size is None else {
        local_size: causal & (key > query - size), -local_size: causal & (key // size == query // size)}
    try:
        given = mask_function(first, first, query, key).expand(causal.shape)
    except (IndexError, RuntimeError):  # it depends on the tokens
        given = ~causal
    for mask, due in masks.items():
        if torch.equal(given, due):
            return torch.tensor(mask)
    _refuse("the model has a mask that is neither causal nor a sliding window nor chunks")


AttentionInterface.register("ring", _attention)
AttentionMaskInterface.register("ring", _mask)


class _Layer(DynamicLayer):
    """The keys and values of one layer, for the tokens that this rank keeps, which are at `positions`."""

    def __init__(self, cache):
        super().__init__()
        self.cache, self.positions, self.length, self.has_grown = cache, [], 0, False

    def update(self, key_states, value_states, *args, **kwargs):
        if self.cache.prompt is None:
            raise RuntimeError("RingCache: first call shard(model, ..., cache=cache), and the model with what it returns")
        rank, size, positions, length = self.cache.prompt
        _updated.layer, self.has_grown = self, self.length > 0
        if not self.has_grown:
            self.positions, self.length = list(positions), length
            return super().update(key_states, value_states)
        new = torch.arange(self.length, self.length + key_states.shape[2])
        mine = new % size == rank  # in turn
        self.length += len(new)
        if mine.any():
            self.positions += new[mine].tolist()
            super().update(key_states[:, :, mine], value_states[:, :, mine])
        return self.keys, self.values

    def get_seq_length(self):
        return self.length

    def crop(self, tokens_to_remove):
        if tokens_to_remove > 0:
            raise ValueError(f"crop: {tokens_to_remove} is positive: give minus the number of tokens to remove")
        self.length = max(self.length + tokens_to_remove, 0)
        kept = [i for i, position in enumerate(self.positions) if position < self.length]
        self.positions = [self.positions[i] for i in kept]
        self.keys, self.values = self.keys[:, :, kept], self.values[:, :, kept]


class RingCache(Cache):
    """A cache of keys and values of which each rank keeps those of some tokens. `shard` fills it, and generate() goes on.

    One rank keeps each new token, in turn. All ranks call generate() with the same arguments, and where it draws tokens, after
    the same torch.manual_seed().
    """

    def __init__(self):
        super().__init__(layer_class_to_replicate=lambda: _Layer(self))
        self.prompt = None  # (rank, size, positions of this rank, tokens of all)

    def reset(self):
        self.__init__()


def shard(model, input_ids, labels=None, *, documents=None, cache=None, seed=0, placement="zigzag", **words):
    """Prepares the next calls of the model, for this sequence. Returns this rank's part of its arguments.

    input_ids, labels  [batch, seq], the same on all ranks
    documents          boundaries of packed sequences, (0,) ..., seq, as cu_seqlens; positions begin again in each
    cache              an empty RingCache for generate()
    seed               of the dropout of attention: another one in each step
    words              of ring_attention: parallel, ulysses, group or comm, threads, same_bits
    """
    seq = input_ids.shape[1]
    bounds = [0, seq] if documents is None else boundaries(documents)
    words = dict(words, seq=seq, placement=placement, documents=documents, seed=seed)
    places = {name: words[name] for name in ("placement", "parallel", "ulysses", "group", "comm", "same_bits") if name in words}
    places["documents"] = documents if words.get("same_bits") else None
    ranks = {name: words[name] for name in ("group", "comm") if name in words}
    if not all(len(numpy_api.positions(seq, **places, rank=rank)) for rank in range(numpy_api.size(**ranks))):
        _refuse(f"{seq} tokens leave a rank without any")
    mine = torch.from_numpy(numpy_api.positions(seq, **places))
    model.set_attn_implementation("ring")
    for module in model.modules():
        if (config := getattr(module, "config", None)) is not None:
            _sequences[id(config)] = config, words, mine, cache is not None
    _updated.layer = None
    position = torch.cat([torch.arange(end - begin) for begin, end in zip(bounds, bounds[1:])])
    # With an attention_mask transformers does not look for packed sequences in the positions, which are those of a shard.
    part = {"input_ids": input_ids[:, mine], "position_ids": position[mine].expand(len(input_ids), -1), "use_cache": False,
            "attention_mask": torch.ones(len(input_ids), len(mine), dtype=torch.long)}
    if cache is not None:
        if cache.get_seq_length() or documents is not None:
            _refuse("a cache is filled once, and without documents; generate() adds to it")
        cache.prompt = numpy_api.rank(**ranks), numpy_api.size(**ranks), mine.tolist(), seq
        part.update(cache=cache, use_cache=True)
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
