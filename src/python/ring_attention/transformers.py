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
import zlib

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicLayer

import ring_attention as numpy_api

from ._masks import boundaries
from ._model_calls import NAME, AgreedError, Call, Refusal, agree, current, is_first, record_of, refuse, refused
from ._model_probe import probe
from .torch import _array, ring_attention

__all__ = ["RingCache", "shard", "sum_gradients"]

_updated = threading.local()  # its layer: the one of a cache whose attention comes next
#: What models pass on to every attention and does not change it.
_OF_OTHERS = {"cache_position", "labels", "logits_to_keep", "num_items_in_batch", "output_hidden_states",
              "output_router_logits", "past_key_values", "position_embeddings", "position_ids", "return_dict", "shift_labels",
              "use_cache"}


class _Mask:
    """Which mask of a ring a model has made, and for which call. A model that computes with it is refused."""

    def __init__(self, call, local=0, problem=None):
        self.call, self.local, self.problem = call, local, problem  # local: a window, or a chunk, which is negative

    def to(self, *_args, **_words):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refusal(NAME + self._text())

    def __getitem__(self, _):
        refuse(self._text())

    @classmethod
    def __torch_function__(cls, function, *_args, **_words):
        refuse(cls._text())

    @staticmethod
    def _text():
        return "the model computes with its mask itself, and a ring has no mask in numbers"


def _attention(module, query, key, value, attention_mask=None, *, scaling=None, dropout=0.0, sliding_window=None, s_aux=None,
               softcap=None, is_causal=None, **others):
    call = attention_mask.call if isinstance(attention_mask, _Mask) else current() or is_first()
    for name, given in others.items():
        if given is not None and given is not False and name not in _OF_OTHERS:
            refuse(f"the model asks for {name}, which the ring does not have", call)
    mask = _Mask(call) if attention_mask is None else attention_mask
    if isinstance(mask, _Mask) and mask.problem is not None:
        refuse(mask.problem, call)
    if not isinstance(mask, _Mask) or max(mask.local, 0) != (sliding_window or 0):
        refuse("the mask of the model is not the one that its attention asks for by sliding_window", call)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    right = 0 if causal else -1 if sliding_window is None else sliding_window - 1
    how = {"causal": causal, "scale": scaling, "softcap": softcap, "chunk": -mask.local if mask.local < 0 else None,
           "window": None if sliding_window is None else (sliding_window - 1, right)}
    call.left.pop(id(module), None)
    words, sink = call.words, s_aux if s_aux is None or s_aux.element_size() > 2 else s_aux.float()
    layer, _updated.layer = getattr(_updated, "layer", None), None
    if call.has_cache and layer is None:
        refuse("a layer that uses the keys of another one has no cache", call)
    if layer is not None and layer.has_grown:
        return _attention_of_cache(layer, query, key, value, sink, dropout, others.get("position_ids"), call, how), None
    if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:  # by the place in the rows that it was given
        if words["documents"] is not None and words["seq"] >= module.floor_scale:
            refuse("attn_temperature_tuning of the model counts the tokens of all documents", call)
        due, given = (torch.log1p(torch.floor((places.to(query.device) + 1.0) / module.floor_scale)) * module.attn_scale + 1
                      for places in (call.mine, torch.arange(len(call.mine))))
        query = query * (due / given)[:, None].to(query.dtype)
    if call.attend is not None:
        out = call.attend(module, query, key, value)
    else:
        words = dict(words, seed=words["seed"] + getattr(module, "layer_idx", 0))
        try:
            out, _ = ring_attention(query, key, value, sink=sink, dropout=dropout, **words, **how)
        except AgreedError as error:
            raise refused(error) from None
    return out.transpose(1, 2).contiguous(), None


def _attention_of_cache(layer, query, key, value, sink, dropout, position_ids, call, how):
    """Attention of the newest tokens, which all ranks have, over a cache that already has them as well."""
    newest = range(layer.length - query.shape[2], layer.length)
    if position_ids is not None and not bool((position_ids == torch.tensor(newest, device=position_ids.device)).all()):
        refuse("a cache of a ring goes on where it ends, without padding: give it all tokens of the prompt but the last", call)
    if dropout or query.requires_grad:
        refuse("a cache has neither dropout nor gradients: model.eval(), torch.no_grad()", call)
    if chunk := how.pop("chunk"):
        how["documents"] = [*range(0, layer.length, chunk), layer.length]
    arrays = (_array(tensor if tensor.dtype == torch.float64 else tensor.float()) for tensor in (query, key, value))
    ranks = {name: call.words[name] for name in ("group", "comm", "threads") if name in call.words}
    try:
        out = numpy_api.decode(*arrays, positions=(newest, layer.positions), sink=_array(sink), **ranks, **how).out
    except AgreedError as error:
        raise refused(error) from None
    return torch.from_numpy(out).to(query).transpose(1, 2).contiguous()


def _mask(*, config, mask_function, attention_mask=None, local_size=None, q_length=0, q_offset=0, **_):
    """Which of the masks of a ring this is. One that a ring does not have is refused when an attention gets it."""
    call = current() or is_first()
    if attention_mask is not None and not attention_mask.all():
        return _Mask(call, problem="padding: give documents, of which the last is the padding")
    end, size = max(call.words["seq"], int(q_offset) + q_length, 1), local_size or 1
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
            return _Mask(call, mask)
    return _Mask(call, problem="the model has a mask that is neither causal nor a sliding window nor chunks")


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
        self.ring_call = None

    def reset(self):
        self.__init__()

    def get_conv_state(self, *_args, **_words):
        refuse("a RingCache has the keys and values of attention, and no other state of a model")

    update_conv_state = get_recurrent_state = update_recurrent_state = update_indexer = has_previous_state = get_conv_state


def _text(**arguments):
    """What the ranks of a ring have to have in common, with checksums in place of arrays."""

    def short(given):
        if isinstance(given, (bool, int, type(None))):
            return str(given)
        whole = given.detach().cpu().contiguous().numpy() if isinstance(given, torch.Tensor) else str([*given]).encode()
        return f"{zlib.crc32(whole):08x}"

    return "shard(" + ", ".join(f"{name} {short(given)}" for name, given in arguments.items()) + ")"


def _prepare(model, input_ids, has_labels, documents, cache, words, ranks):
    """The call, whose layers and rotary frequencies a ring can compute."""
    seq = input_ids.shape[1]
    bounds = [0, seq] if documents is None else boundaries(documents)
    places = {name: words[name] for name in ("placement", "parallel", "ulysses", "group", "comm", "same_bits") if name in words}
    places["documents"] = documents if words.get("same_bits") else None
    shards = [torch.from_numpy(numpy_api.positions(seq, **places, rank=rank)) for rank in range(numpy_api.size(**ranks))]
    if not all(map(len, shards)):
        refuse(f"{seq} tokens leave a rank without any")
    if cache is not None and (cache.get_seq_length() or documents is not None):
        refuse("a cache is filled once, and without documents; generate() adds to it")
    position = torch.cat([torch.arange(end - begin) for begin, end in zip(bounds, bounds[1:])])
    record, before = record_of(model), model.config._attn_implementation
    longest, change = int(position.max()), record.change
    if change is not None and longest >= change and len(set(bounds)) > 2:
        refuse(f"the rotary frequencies of the model depend on the length from {change} tokens on: give one sequence")
    if change is not None and cache is not None and seq >= change:
        refuse(f"the rotary frequencies of the model depend on the length from {change} tokens on: a cache has fewer")
    mine = shards[numpy_api.rank(**ranks)]
    call = Call(dict(words, seq=seq), mine, position[mine], longest, ranks, cache is not None)
    model.set_attn_implementation("ring")
    kind = tuple(type(module) for module in model.modules())
    if record.probed is None or record.probed[0] != kind or record.probed[1] < longest or record.probed[2] < has_labels:
        token = int(input_ids[0, 0])
        try:
            layers = probe(model, token, token - 1 if token else 1, min(int(position[shard].max()) for shard in shards), longest,
                           has_labels)
        except NotImplementedError:
            model.set_attn_implementation(before)
            raise
        record.probed = kind, longest, has_labels
        record.layers = {id(module): {id(layer): layers[layer] for layer in module.modules() if layer in layers}
                         for module in model.modules() if module is model or hasattr(module, "set_attn_implementation")}
    record.last = call
    return call


def shard(model, input_ids, labels=None, *, documents=None, cache=None, seed=0, placement="zigzag", **words):
    """Prepares the next calls of the model, for this sequence. Returns this rank's part of its arguments. Collective.

    input_ids, labels  [batch, seq], the same on all ranks
    documents          boundaries of packed sequences, (0,) ..., seq, as cu_seqlens; positions begin again in each
    cache              an empty RingCache for generate()
    seed               of the dropout of attention: another one in each step
    words              of ring_attention: parallel, ulysses, group or comm, threads, same_bits

    The first call with a model computes some tokens with it, to see that they meet in attention alone.
    """
    ranks = {name: words[name] for name in ("group", "comm") if name in words}
    words = dict(words, placement=placement, documents=documents, seed=seed)
    text = _text(input_ids=input_ids, labels=labels, documents=documents, seed=seed, cache=cache is not None)
    call = agree(ranks, text, lambda: _prepare(model, input_ids, labels is not None, documents, cache, words, ranks),
                 "input_ids, labels and documents are the same on all ranks of a ring, which share one batch")
    mine, batch = call.mine, len(input_ids)
    # With an attention_mask transformers does not look for packed sequences in the positions, which are those of a shard.
    part = {"input_ids": input_ids[:, mine], "position_ids": call.positions.expand(batch, -1), "use_cache": False,
            "attention_mask": torch.ones(batch, len(mine), dtype=torch.long)}
    part["position_ids"].ring_call = call
    _updated.layer = None
    if cache is not None:
        cache.prompt = numpy_api.rank(**ranks), numpy_api.size(**ranks), mine.tolist(), input_ids.shape[1]
        cache.ring_call = call
        part.update(cache=cache, use_cache=True)
    if labels is not None:
        after = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        if documents is not None:
            after[:, [end - 1 for end in boundaries(documents)[1:-1] if end]] = -100  # the next token is another document's
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
