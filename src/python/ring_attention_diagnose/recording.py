"""`record`: what the attentions and the other modules of a model in PyTorch take and return in one step."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Iterator, Sequence

import numpy as np

_WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")


class Recording:
    """What one process has seen; `loss` is to be set to the tensor of the loss that it reports."""

    def __init__(self, names: dict):
        self.names, self.loss, self.of_tokens = names, None, None
        self.arrays: dict[str, np.ndarray] = {}
        self.words: dict[str, dict] = {}  #: of each attention
        self.modules: list[str] = []  #: in the order in which they return
        self._given: list = []

    def keep(self, name: str, tensor) -> None:
        tensor = tensor.detach().cpu()
        self.arrays[name] = np.array((tensor.float() if tensor.element_size() < 4 else tensor).numpy())

    def keep_all(self, name: str, values) -> None:
        """The floating tensors in them."""
        if isinstance(values, (dict, list, tuple)):
            for key, value in values.items() if isinstance(values, dict) else enumerate(values):
                if "mask" not in str(key):
                    self.keep_all(f"{name}.{key}", value)
        elif hasattr(values, "is_floating_point") and values.is_floating_point() and values.dim() > 1:
            self.keep(name, values)

    def enter(self, module, args, words) -> None:
        self._given.append([args, words] if _is_step() else None)

    def leave(self, module, _args, output) -> None:
        given, name = self._given.pop(), self.names[module]
        if given is None or name in self.modules:
            return
        self.modules.append(name)
        self.keep_all(f"{name}:given", given)
        self.keep_all(f"{name}:got", output if isinstance(output, (dict, list, tuple)) else [output])
        labels, logits = given[1].get("labels"), getattr(output, "logits", None)
        if not name and labels is not None and logits is not None and len(labels) == 1:
            from torch.nn.functional import cross_entropy

            of_tokens = cross_entropy(logits[0, :-1].float(), labels[0, 1:], reduction="none").detach().cpu().tolist()
            self.of_tokens = [loss if label >= 0 else None for loss, label in zip(of_tokens, labels[0, 1:].tolist())] + [None]

    def attend(self, module, attention, q, k, v, words: dict, in_rows: bool):
        """Calls attention(q, k, v).

        in_rows: the result is [batch, tokens, heads, dim], and not like q
        """
        name = self.names.get(module)
        if not _is_step() or name is None or name in self.words:
            return attention(q, k, v)
        sinks = words.pop("sinks", None)
        self.words[name] = {key: value for key, value in words.items() if value is not None}
        self.words[name]["type"] = str(q.dtype).rpartition(".")[2]
        if sinks is not None:
            self.keep(f"{name}:sinks", sinks)
        given = [tensor.view_as(tensor) for tensor in (q, k, v)]  # what else uses the tensors has gradients of its own
        for letter, tensor in zip("qkv", given):
            self._keep_with_gradient(f"{name}:{{}}{letter}", tensor, False)
        result = attention(*given)
        self._keep_with_gradient(f"{name}:{{}}out", result[0] if isinstance(result, tuple) else result, in_rows)
        return result

    def _keep_with_gradient(self, name: str, tensor, in_rows: bool) -> None:
        turned = (lambda x: x.transpose(1, 2)) if in_rows else lambda x: x
        self.keep(name.format(""), turned(tensor))
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: self.keep(name.format("d"), turned(gradient)))


def _is_step() -> bool:
    """Not in a call that only looks at the model."""
    import torch

    return torch.is_grad_enabled()


def _wrapped(recording: Recording, get_interface):
    """AttentionInterface.get_interface of transformers."""
    def get(self, *args, **keywords):
        interface = get_interface(self, *args, **keywords)

        def attention(module, q, k, v, *args, **keywords):
            causal = keywords.get("is_causal")
            words = {"causal": bool(getattr(module, "is_causal", True) if causal is None else causal),
                     "scale": keywords.get("scaling"), "window": keywords.get("sliding_window"),
                     "softcap": keywords.get("softcap"), "sinks": keywords.get("s_aux")}
            return recording.attend(module, lambda *qkv: interface(module, *qkv, *args, **keywords), q, k, v, words, True)

        return attention

    return get


@contextlib.contextmanager
def record(model, folder: str | Path, positions: Sequence[int] | None = None, rank: int = 0,
           attention: dict[str, dict] | None = None) -> Iterator[Recording]:
    """Records one forward and backward of a model in PyTorch, and writes FOLDER/RANK.npz.

    :param positions: of the tokens of this rank, in the order of its memory; None: the model computes in one process, and
    the file is FOLDER/whole.npz
    :param attention: of a model that is not of transformers: for the name of each module whose forward is (q, k, v, ...) ->
    out, [batch, heads, tokens, dim], the words causal, scale, window, softcap of what it should compute
    """
    modules = {module: _WRAPPERS.sub("", name) for name, module in model.named_modules()}
    recording, hooks, interface = Recording(modules), contextlib.ExitStack(), None
    model.zero_grad()
    with hooks:
        for module, name in modules.items():
            hooks.callback(module.register_forward_pre_hook(recording.enter, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(recording.leave).remove)
            if name in (attention or {}):
                def forward(q, k, v, *args, module=module, name=name, forward=module.forward, **keywords):
                    return recording.attend(module, lambda *qkv: forward(*qkv, *args, **keywords), q, k, v,
                                            dict(attention[name]), False)
                module.forward = forward
                hooks.callback(module.__dict__.pop, "forward")
        if attention is None:
            from transformers import AttentionInterface as interface

            hooks.callback(setattr, interface, "get_interface", interface.get_interface)
            interface.get_interface = _wrapped(recording, interface.get_interface)
        yield recording
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            recording.keep(f"{_WRAPPERS.sub('', name)}:gradient", parameter.grad)
    words = {"positions": None if positions is None else [int(token) for token in positions], "attention": recording.words,
             "modules": recording.modules, "types": {name: type(module).__name__ for module, name in modules.items()},
             "loss": recording.loss if recording.loss is None else recording.loss.item(), "of_tokens": recording.of_tokens}
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{'whole' if positions is None else rank}.npz"
    with open(f"{path}.{os.getpid()}", "wb") as file:  # each rank may write the whole
        np.savez(file, words=json.dumps(words), **recording.arrays)
    os.replace(file.name, path)
