"""Layers whose tokens meet outside the attention interface, or count their own places: models for transformers_guards.py."""

import torch
import transformers as t
from torch import nn
from transformers_program import COMMON


def llama(**more):
    torch.manual_seed(0)
    model = t.LlamaForCausalLM(t.LlamaConfig(**{**COMMON, **more}))
    model.set_attn_implementation("eager")
    return model


class Convolution(nn.Module):
    """Over four tokens; its weights are 0, as those of a layer that has not learned yet."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(64, 64, 4, padding=3, groups=64)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x, **_):
        return self.conv(x.mT)[..., :x.shape[1]].mT


class Scan(nn.Module):
    """A state that each token changes."""

    def forward(self, x, **_):
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = 0.9 * state + 0.1 * token
            states.append(state)
        return torch.stack(states, 1)


class Stream(nn.Module):
    """A mean of all tokens before."""

    def forward(self, x, **_):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


class Choice(nn.Module):
    """The layer takes half of the tokens: those of the largest number."""

    def forward(self, x, **_):
        chosen = x[..., 0].topk(x.shape[1] // 2).indices
        return torch.zeros_like(x).scatter(1, chosen[..., None].expand(-1, -1, x.shape[2]), 1.0)


class Normalised(nn.BatchNorm1d):
    """By the mean of the tokens, while it is trained."""

    def forward(self, x, **_):
        return super().forward(x.mT).mT


class OwnAttention(nn.Module):
    """It never calls the interface."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, hidden_states, **_):
        q, k, v = self.qkv(hidden_states).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2), None


class OwnPlaces(nn.Module):
    """It counts the tokens that it has."""

    def forward(self, x, **_):
        return x + torch.arange(float(x.shape[1]))[:, None].cos()


class OwnRotary(nn.Module):
    """Its angles depend on the largest position that it sees, which no attribute tells."""

    def forward(self, x, position_ids):
        angles = position_ids[..., None] * torch.ones(16) / (1 + position_ids.max())
        return angles.cos(), angles.sin()


class Mixing(t.LlamaForCausalLM):
    """In no module of its own."""

    def forward(self, **words):
        result = super().forward(**words)
        result.logits = result.logits + 0 * result.logits.cumsum(1)
        return result


def with_layer(layer):
    """Llama, in which `layer` is in place of one of its own."""
    model = llama()
    if isinstance(layer, OwnRotary):
        model.model.rotary_emb = layer
    elif isinstance(layer, OwnAttention):
        model.model.layers[1].self_attn = layer
    else:
        model.model.layers[1].mlp = layer
    return model


def of_transformers():
    """One of each kind, and the layer that is named."""
    small = dict(vocab_size=64, hidden_size=64, num_hidden_layers=2)
    yield t.Lfm2ForCausalLM(t.Lfm2Config(**{**COMMON, "layer_types": ["conv", "full_attention"]})), "model.layers.0.conv (Lfm2ShortConv)"
    yield t.Mamba2ForCausalLM(t.Mamba2Config(**small, num_heads=8, head_dim=16, state_size=16, n_groups=1)), "layers.0.mixer (Mamba2Mixer)"
    yield t.BloomForCausalLM(t.BloomConfig(**small, n_head=4)), "transformer.h.0.self_attention (BloomAttention)"
    yield t.FalconForCausalLM(t.FalconConfig(**small, num_attention_heads=4)), "transformer.h.0.self_attention (FalconAttention)"
    yield t.GPTNeoForCausalLM(t.GPTNeoConfig(**small, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])), \
        "transformer.h.0.attn.attention (GPTNeoSelfAttention)"
