"""Whether the tokens of a model meet in its attention alone, and have their places from position_ids alone.

Then, and only then, a rank may compute the rest of the model with some of the tokens. The probe calls the model twice with a few
equal tokens, at one position, and an attention in which each token has itself alone. So all tokens have to stay equal. In the
second call one token is NaN, which no weight hides, also not one of 0, and it is at the last position: nothing else may change.
The first module of whose tokens this is not true, while it is of what the module was given, is the one to name.
"""

from __future__ import annotations

import contextlib
import math

import torch

from ._model_calls import NAME, Call, begin, end, refuse

_LENGTHS = (251, 241, 239, 233, 229, 227)  # primes: the axis of the tokens is the one of this length


class _ProbeCall(Call):
    def __init__(self, positions, longest):
        super().__init__({"seq": longest + 1, "documents": None}, positions, positions, longest, None)
        self.layers = {}

    def attend(self, module, query, key, value):
        """Attention of each token to itself: a number of each, so that what differs or is NaN in them is so in the result."""
        self.layers[module] = None
        if {key.shape[2], value.shape[2]} != {query.shape[2]}:
            refuse("an attention has other keys than those of the tokens")
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
        weights = [torch.arange(1.0, one.shape[-1] + 1, device=one.device).cos() / math.sqrt(one.shape[-1]) for one in (query, key)]
        numbers = [(one * weight.to(one.dtype)).sum(-1, keepdim=True) for one, weight in zip((query, key), weights)]
        return value + sum(numbers)


def _tokens_in(values, length):
    """Three numbers of each token, of each tensor that has an axis of tokens: a sum, the norm, and what counts as a change."""
    if isinstance(values, torch.Tensor):
        axis = next((axis for axis, size in enumerate(values.shape) if size == length), None)
        if axis is None:
            return []
        values = torch.view_as_real(values) if values.is_complex() else values
        rows = values.detach().movedim(axis, 0).reshape(length, -1).float().clamp(-1e9, 1e9)  # a mask has the smallest number
        size = rows.norm(dim=1)
        change = size * (0.05 if values.element_size() < 4 else 2e-3)
        return [torch.stack([rows @ torch.arange(1.0, rows.shape[1] + 1, device=rows.device).cos(), size, change], 1)]
    if isinstance(values, dict):
        values = [value for name, value in values.items() if name != "cache_position"]
    return [one for value in values for one in _tokens_in(value, length)] if isinstance(values, (list, tuple)) else []


def _near(one, other, changes=1.0):
    return bool(((one - other)[:, :2].abs() <= changes * other[:, 2:]).all())


class _Watch:
    """Hooks of all modules during one call of the model. `before`: the Watch of the first call."""

    def __init__(self, model, length, odd, before=None):
        self.names = {module: name for name, module in model.named_modules()}
        self.length, self.odd, self.before, self.found = length, odd, before, None
        self.others = [token for token in range(length) if token != odd]
        self.stack, self.seen, self.calls = [], {}, {}

    def enter(self, module, args, words):
        self.stack.append((module, _tokens_in([args, words], self.length)))

    def leave(self, module, args, output):
        given, got = self.stack.pop()[1], _tokens_in([output], self.length)
        number = self.calls[module] = self.calls.get(module, -1) + 1
        self.seen[module, number] = given, got
        before = self.before and self.before.seen.get((module, number))
        if given and self.found is None and self._differs(given, got, before, not self.names[module]):
            self.found = self.name_of(module)

    def name_of(self, module):
        return f"{self.names[module]} ({type(module).__name__})" if self.names[module] else type(module).__name__

    def _differs(self, given, got, before, is_all):
        if self.before is None:
            return all(_near(one, one[:1], 0.05) for one in given) and not all(_near(one, one[:1]) for one in got)
        if before is None or [len(given), len(got)] != [len(one) for one in before]:
            return is_all
        given, got, given_before, got_before = ([one[self.others] for one in some] for some in (given, got, *before))
        if all(torch.equal(one, other) for one, other in zip(given, given_before)):
            return not all(_near(one, other) for one, other in zip(got, got_before))
        return not any(one.isnan().any() for one in given) and any(one.isnan().any() for one in got)


@contextlib.contextmanager
def _untouched(model):
    """Afterwards buffers, numbers of the modules (such as `training`) and the generators are what they were."""
    kinds = (bool, int, float, str, torch.Tensor, type(None))
    plain = [(module, {name: value for name, value in vars(module).items() if isinstance(value, kinds)}, dict(module._buffers),
              {name: value.clone() for name, value in module._buffers.items() if value is not None and value.numel() < 1 << 20})
             for module in model.modules()]
    devices = {one.device for one in model.parameters() if one.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        try:
            yield
        finally:
            for module, numbers, buffers, copies in plain:
                vars(module).update(numbers)
                module._buffers.clear()
                module._buffers.update(buffers)
                for name, value in copies.items():
                    if not torch.equal(buffers[name], value):
                        buffers[name].copy_(value)


def _embed(token, other, reached):
    """A hook of the embedding: all tokens have one vector, and the other one is NaN."""

    def embed(_module, args, output):
        scale = output[args[0] == token][:1].float().std() + 0.01
        vector = torch.arange(1.0, output.shape[-1] + 1, device=output.device).sin() * scale
        output = torch.where((args[0] == token)[..., None], vector.to(output.dtype), output)
        reached.append(bool((args[0] == other).any()))
        return output.masked_fill((args[0] == other)[..., None], math.nan)

    return embed


def _look(model, tokens, positions, longest, watch, token, other, **labels):
    """Calls the model. Returns the layers that have called the attention, and the result."""
    reached = []
    hooks = [model.get_input_embeddings().register_forward_hook(_embed(token, other, reached))]
    for module in watch.names:
        hooks += [module.register_forward_pre_hook(watch.enter, with_kwargs=True), module.register_forward_hook(watch.leave)]
    call = _ProbeCall(positions, longest)
    begin(watch, call)
    try:
        result = model(input_ids=tokens[None], position_ids=positions[None].to(tokens.device), use_cache=False,
                       attention_mask=torch.ones_like(tokens[None]), **labels)
    finally:
        end(watch)
        for hook in hooks:
            hook.remove()
    got = watch.seen[model, 0][1]
    if watch.before and not (any(reached) and got and got[0][watch.odd].isnan().all()):
        refuse(f"{type(model).__name__} does not compute its result for a token from the embedding of the token")
    return call.layers, result


def _is_of_all_ranks(result, shift_labels, count):
    """Is the loss a sum over the tokens, divided by the number that was given?"""
    due = torch.nn.functional.cross_entropy(result.logits[0].float(), shift_labels[0], reduction="sum") / count
    return result.loss is not None and bool((result.loss - due).abs() <= 0.02 * due)


def probe(model, token, other, place, longest, has_labels):
    """The layers of attention of a model, and their names. Refuses a model in which tokens meet elsewhere.

    token, other  two numbers of tokens
    place         the largest position of the rank whose positions are the smallest
    longest       the largest position of all ranks
    has_labels    is the model asked for its loss?
    """
    model = getattr(model, "_orig_mod", model)  # without torch.compile
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    length = next((one for one in _LENGTHS if one not in sizes), 223)
    odd, device = length // 2, next(model.parameters()).device
    tokens, positions = torch.full((length,), token, device=device), torch.full((length,), place)
    first = _Watch(model, length, odd)
    second = _Watch(model, length, odd, first)
    is_compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())
    eager = torch.compiler.set_stance("force_eager") if is_compiled else contextlib.nullcontext()
    with torch.no_grad(), _untouched(model), eager:
        for module in model.modules():
            if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.training = False
        try:
            watch = first
            labels = {"labels": tokens[None] - token + other, "shift_labels": tokens[None].clone(),
                      "num_items_in_batch": torch.tensor(1000, device=device)} if has_labels else {}
            layers, result = _look(model, tokens, positions, longest, first, token, other, **labels)
            tokens[odd], positions = other, positions.index_fill(0, torch.tensor([odd]), longest)
            watch = second
            _look(model, tokens, positions, longest, second, token, other, **labels)
        except Exception as error:
            if not (first.found or second.found):
                place = watch.name_of(watch.stack[-1][0] if watch.stack else model)
                if isinstance(error, NotImplementedError):
                    refuse(f"{str(error).removeprefix(NAME)}: {place}")
                refuse(f"{place} does not compute a part of a sequence: {type(error).__name__}: {str(error).splitlines()[:1]}")
    if second.found:
        refuse(f"in {second.found} tokens meet outside the attention interface of transformers, and a ring has no other way")
    if first.found:
        refuse(f"{first.found} takes the places of tokens in the part of a rank, and not their position_ids")
    if has_labels and not _is_of_all_ranks(result, labels["shift_labels"], 1000):
        refuse(f"{type(model).__name__} does not divide the loss of shift_labels by num_items_in_batch: call shard without labels")
    return {layer: first.name_of(layer) for layer in layers}
