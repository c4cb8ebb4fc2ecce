"""The calls of a model on a ring. `shard` makes a Call, and it travels with what it was made for: position_ids, a cache, a mask.

So what a call uses does not depend on what was prepared since: a layer that gradient checkpointing computes again in backward()
finds its call in its mask. Hooks of the model's forward say which call is under way, and look at it before and after.
"""

from __future__ import annotations

import threading
import weakref

import torch

from ._core import AgreedError
from ._job import prepare_together, ranks_of

NAME = 'attn_implementation="ring": '
_records = weakref.WeakKeyDictionary()  # by model, and by the models in it
_under_way = threading.local()  # its stack: (module, its call)


class Refusal(NotImplementedError, AttributeError):
    """For __getattr__: hasattr() is false."""


class Record:
    """What is known of a model."""

    def __init__(self):
        self.last = None  # its newest call
        self.layers = {}  # by the id of each model in it: its layers of attention, their ids and names
        self.probed = None  # (what its layers are, the longest position, with labels?) that the probe has seen
        self.change = None  # the length from which on its rotary frequencies depend on the length


class Call:
    """What one call of a model uses.

    words        of ring_attention
    mine         the places of this rank's tokens in the sequence
    positions    position_ids of one row
    longest      the largest position of all ranks
    ranks        comm= or group=; None in the probe
    """

    attend = None  # instead of the ring's attention

    def __init__(self, words, mine, positions, longest, ranks, has_cache=False):
        self.words, self.mine, self.positions, self.longest = words, mine, positions, longest
        self.ranks, self.has_cache, self.left = ranks, has_cache, {}


def agree(ranks, name, prepare, remedy=""):
    """prepare(), on all ranks. Where it refuses on one, all have its NotImplementedError. `remedy`: where the names differ."""
    try:
        return prepare_together(ranks_of(ranks.get("comm"), ranks.get("group")), name, prepare)[0]
    except AgreedError as error:
        differ = remedy and "disagree on the call" in str(error)
        raise AgreedError(f"{error}: {remedy}") if differ else refused(error) from None


def refused(error):
    """The error of all ranks as the one that refused has it."""
    return NotImplementedError(str(error)) if NAME in str(error) else error


def refuse(what, call=None):
    """A NotImplementedError. The other ranks of a call, which are on their way to its next attention, have it as well."""
    error = NotImplementedError(NAME + what)
    if call is None or call.ranks is None:
        raise error

    def prepare():
        raise error

    agree(call.ranks, "ring_attention", prepare)


def current():
    """The call that is under way in this thread, or None."""
    stack = getattr(_under_way, "stack", None)
    return stack[-1][1] if stack else None


def is_first():
    raise RuntimeError(f"{NAME}first call shard(model, ...) of ring_attention.transformers, and the model with what it returns; "
                       'model.set_attn_implementation("sdpa") leaves the ring')


def record_of(model):
    """The Record of a model. The first call adds the hooks."""
    if model not in _records:
        record = Record()
        record.change = _first_change(model)
        for module in model.modules():
            is_model, hooks = module is model or hasattr(module, "set_attn_implementation"), [*module._forward_pre_hooks.values()]
            if is_model:
                _records[module] = record
            if is_model and _enter not in hooks:  # a copy of a model has them
                module.register_forward_pre_hook(_enter, with_kwargs=True)
                module.register_forward_hook(_leave, always_call=True)
            if _changes_with_length(module) and _add_longest not in hooks:
                module.register_forward_pre_hook(_add_longest, with_kwargs=True)
                module.register_forward_hook(_drop_longest)
    return _records[model]


def begin(module, call):
    if not hasattr(_under_way, "stack"):
        _under_way.stack = []
    _under_way.stack.append((module, call))


def end(module):
    """Returns the call, or None when there is none of this module or it goes on around it."""
    if not getattr(_under_way, "stack", None) or _under_way.stack[-1][0] is not module:
        return None
    _, call = _under_way.stack.pop()
    return None if _under_way.stack else call


@torch.compiler.disable
def _enter(module, args, words):
    record, call = _records.get(module), current()
    given = next((one for one in (getattr(value, "ring_call", None) for value in (*words.values(), *args)) if one), None)
    if record is None or module.config._attn_implementation != "ring":
        if given is not None:
            raise RuntimeError(f"{NAME}the model computes with {module.config._attn_implementation!r} since shard: call it again")
        return begin(module, None)
    if call is None:
        call = given or _call_of_copy(words.get("position_ids"), record.last)
        if call.ranks is not None and words.get("output_router_logits", getattr(module.config, "output_router_logits", False)):
            refuse("output_router_logits: the loss that balances experts is not a sum over the tokens of the ranks", call)
        call.left = dict(record.layers.get(id(module), {}))
    begin(module, call)


def _call_of_copy(given, last):
    """The newest call, when these position_ids are a copy of those that it handed out."""
    if last is None:
        is_first()
    is_equal = given is not None and given.shape[-1] == len(last.positions) and bool((given.cpu() == last.positions).all())
    if last.has_cache and not is_equal:
        refuse("generate() goes on without the RingCache: this model computes the keys again where its rotary frequencies change")
    if given is None:
        is_first()
    if not is_equal:
        raise RuntimeError(f"{NAME}position_ids are not those of shard(): give it the documents of a packed sequence, documents=")
    return last


@torch.compiler.disable
def _leave(module, args, output):
    call = end(module)
    if call is None or output is None:
        return
    if call.left:
        refuse(f"{next(iter(call.left.values()))} has not called the ring in this forward", call)
    if getattr(output, "aux_loss", None) is not None:
        refuse("aux_loss: the loss that balances experts is not a sum over the tokens of the ranks", call)


# ---- Rotary frequencies that depend on the longest position -----------------------------------------------------


def _changes_with_length(module):
    """Is it a rotary embedding whose frequencies depend on the largest of its position_ids?"""
    kinds = getattr(module, "rope_type", None)
    return bool({"dynamic", "longrope"} & set(kinds.values() if isinstance(kinds, dict) else [kinds]))


def _first_change(model):
    lengths = [length for module in model.modules() if _changes_with_length(module)
               for parameters in (module.config.rope_parameters, *module.config.rope_parameters.values())
               if isinstance(parameters, dict) and parameters.get("rope_type") in ("dynamic", "longrope")
               for length in [parameters.get("original_max_position_embeddings") or module.config.max_position_embeddings]]
    return min(lengths, default=None)


def _add_longest(_module, args, words):
    if current() is None:
        return None
    args, words, longest = list(args), dict(words), current().longest

    def longer(positions):
        return torch.cat([positions, torch.full_like(positions[..., :1], longest)], -1)

    if "position_ids" in words:
        words["position_ids"] = longer(words["position_ids"])
    else:
        args[1] = longer(args[1])
    return tuple(args), words


def _drop_longest(_module, _args, output):
    if current() is None:
        return None
    return tuple(part[..., :-1, :] for part in output) if isinstance(output, tuple) else output[..., :-1, :]
