"""Dense attention in NumPy and double, forward and backward: the one that all tests in Python compare with. Random cases for it,
and numbers for files.
"""

import numpy as np


def visible(queries, keys, *, causal=False, window=None, documents=None, q_offset=None, prefix=None, blocks=(), sink_tokens=0,
            global_tokens=(), chunk=None, intervals=None, **_):
    """bool [queries, keys]"""
    query = np.arange(queries)[:, np.newaxis] + (keys - queries if q_offset is None else q_offset)
    key = np.arange(keys)[np.newaxis]
    left, right = window or (-1, -1)
    if causal:
        right = 0
    seen = np.ones((queries, keys), bool)
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    if chunk is not None:
        seen &= query // chunk == key // chunk
    for begin, end in [*blocks, (0, prefix or 0)]:
        seen |= (begin <= query) & (query < end) & (begin <= key) & (key < end)
    earlier = key <= query + (0 if right == 0 else np.inf)
    seen |= (key < sink_tokens) & earlier
    for begin, end in global_tokens:
        seen |= ((begin <= query) & (query < end) | (begin <= key) & (key < end)) & earlier
    if intervals is not None:
        begin, end = np.moveaxis(intervals, 2, 0)[:, :, :, np.newaxis]
        seen &= ((begin <= key) & (key < end)).any(axis=1)
    if documents is not None:
        def number(position):
            inside = (position >= 0) & (position < documents[-1])
            return np.where(inside, np.searchsorted(documents, position, "right"), -1)

        seen &= (number(query) == number(key)) & (number(query) >= 0)
    return seen


OF_PAIRS = ("bias", "alibi", "softcap")  # keywords of terms of the score of a pair, which a kernel= does not get


def slopes(heads):
    """ALiBi's."""
    power = 2 ** int(np.log2(heads))
    first = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    more = 2.0 ** (-8 * np.arange(1, 2 * (heads - power) + 1, 2) / (2 * power))
    return np.concatenate([first, more])


def attention(q, k, v, *, bias=None, alibi=False, scale=None, softcap=None, sink=None, kept=1, **words):
    """(out, lse, p): q [B, H, Sq, D]; p holds the weights. `kept` is what dropout multiplies them with, for v alone."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    s = (1 / np.sqrt(q.shape[-1]) if scale is None else scale) * (q @ k.swapaxes(2, 3))
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if alibi:
        offset = words.get("q_offset")
        offset = k.shape[2] - q.shape[2] if offset is None else offset
        distance = np.abs(np.arange(k.shape[2]) - (np.arange(q.shape[2])[:, np.newaxis] + offset))
        s = s - slopes(q.shape[1])[:, np.newaxis, np.newaxis] * distance
    if bias is not None:
        s = s + bias
    s = np.where(visible(q.shape[2], k.shape[2], **words), s, -np.inf)
    logits = s if sink is None else np.concatenate(
        [s, np.broadcast_to(np.asarray(sink)[:, np.newaxis, np.newaxis], (*s.shape[:3], 1))], axis=3)
    largest = logits.max(axis=3, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0)
    with np.errstate(divide="ignore"):
        lse = largest + np.log(np.exp(logits - largest).sum(axis=3, keepdims=True))
    p = np.exp(s - np.where(np.isfinite(lse), lse, 0))
    return (kept * p) @ v, lse[..., 0], p


def gradients(grad_out, q, k, v, *, grad_lse=None, bias=None, scale=None, softcap=None, sink=None, kept=1, **words):
    """(dq, dk, dv, dbias or None, dsink or None)"""
    out, lse, p = attention(q, k, v, bias=bias, scale=scale, softcap=softcap, sink=sink, kept=kept, **words)
    group = q.shape[1] // k.shape[1]
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    delta = (grad_out * out).sum(axis=3, keepdims=True) - (0 if grad_lse is None else grad_lse[..., np.newaxis])
    ds = p * (kept * (grad_out @ v.repeat(group, 1).swapaxes(2, 3)) - delta)

    def of_group(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2)

    dbias = dsink = None
    if bias is not None:
        dbias = ds
        for axis, extent in enumerate((1,) * (4 - bias.ndim) + bias.shape):
            if extent == 1:
                dbias = dbias.sum(axis=axis, keepdims=True)
        dbias = dbias.reshape(bias.shape)
    if sink is not None:
        p_sink = np.exp(np.asarray(sink)[:, np.newaxis] - lse)
        dsink = -(p_sink * delta[..., 0]).sum(axis=(0, 2))
    if softcap is not None:
        ds = ds * (1 - np.tanh(scale * q @ k.repeat(group, 1).swapaxes(2, 3) / softcap) ** 2)
    return (scale * ds @ k.repeat(group, 1), of_group(scale * ds.swapaxes(2, 3) @ q),
            of_group((kept * p).swapaxes(2, 3) @ grad_out), dbias, dsink)


def split_mix(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def kept_by_dropout(shape, probability, seed):
    """[B, H, Sq, Sk]: 0 for a pair that is dropped, else 1 / (1 - p), from the definition in attention/dropout.hpp."""
    threshold = int((1 - probability) * 2**32)
    word = np.array([seed], np.uint64)
    for number in (0, 0, *np.ogrid[tuple(map(slice, shape[:3]))]):  # step, layer, batch, head, query
        word = split_mix(word) ^ np.uint64(number)
    word = split_mix(word)[..., np.newaxis]
    x = word.astype(np.uint32) ^ np.arange(shape[3], dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = x + (word >> np.uint64(32)).astype(np.uint32)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return np.where(x ^ x >> np.uint32(16) < threshold, 2**32 / threshold, 0)


def largest_difference(got, want):
    """Of two arrays with -inf in the same places; NaN when they do not fit."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    hidden = np.isneginf(want)
    if got.shape != want.shape or not np.array_equal(np.isneginf(got), hidden):
        return np.nan
    return np.abs(np.where(hidden, 0, got) - np.where(hidden, 0, want)).max(initial=0)


def random_values(shape, seed, dtype=np.float64):
    """Numbers that float16 holds exactly, so that every type of file holds the same problem."""
    return (np.random.default_rng(seed).integers(-2048, 2049, shape) / 1024).astype(dtype)


def random_sets(rng, queries, keys):
    """Keywords of a mask of several intervals, without documents."""
    begin, middle, third, end = map(int, np.sort(rng.integers(0, keys + 1, 4)))
    pairs = [pair for pair in ((begin, middle), (third, end)) if pair[0] < pair[1]]
    if rng.random() < 0.3:
        cuts = np.sort(rng.integers(0, keys + 1, (queries, 6)), axis=1)
        return {"intervals": cuts.reshape(queries, 3, 2)}
    return [{"prefix": int(rng.integers(1, keys + 1))}, {"blocks": pairs}, {"sink_tokens": 3, "global_tokens": pairs},
            {"chunk": 7, "blocks": pairs, "sink_tokens": 2}][rng.integers(4)]


def random_case(number, queries=None, keys=None):
    """(q, k, v, grad_out, words) of a seed, in double."""
    rng = np.random.default_rng(number)
    batch, kv_heads, group = rng.integers(1, 3), rng.integers(1, 4), rng.integers(1, 4)
    keys = int(rng.integers(1, 60)) if keys is None else keys
    queries = (keys if rng.random() < 0.6 else int(rng.integers(1, 60))) if queries is None else queries
    dim = int(rng.choice([1, 3, 8, 16, 33]))
    heads = kv_heads * group
    value_dim = (dim, 5, 21)[number % 3]
    q, k, v, grad_out = (rng.standard_normal((batch, h, s, d)) for h, s, d in (
        (heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, value_dim), (heads, queries, value_dim)))
    words = {"causal": bool(rng.random() < 0.5)}
    if rng.random() < 0.3:
        words["window"] = tuple(int(side) for side in rng.integers(-1, 20, 2))
    if rng.random() < 0.3:
        inner = np.sort(rng.integers(0, keys + 1, 3))
        words["documents"] = [0, *map(int, inner), keys]
    elif number % 3 == 0:
        words.update(random_sets(np.random.default_rng(number), queries, keys))
        if not ({"chunk", "intervals"} & words.keys() or words["causal"] and "sink_tokens" not in words):
            words.setdefault("window", (7, 3))  # without it these sets change nothing
    if rng.random() < 0.3:
        words["alibi"] = True
    if rng.random() < 0.3:
        words["scale"] = float(rng.uniform(0.1, 1.5))
    if rng.random() < 0.3:
        words["sink"] = rng.standard_normal(heads)
    if rng.random() < 0.3:
        words["bias"] = rng.standard_normal((rng.choice([1, batch]), rng.choice([1, heads]), queries, keys))
        words["bias"][rng.random(words["bias"].shape) < 0.05] = -np.inf
    if rng.random() < 0.3:
        words["softcap"] = float(rng.uniform(0.3, 3))
    if rng.random() < 0.2:
        words["q_offset"] = int(rng.integers(-3, 4))
    return q, k, v, grad_out, words


def torch_kernel(q, k, v, mask, scale):
    """PyTorch's flash attention for the CPU, which returns lse, as a kernel of ring_attention."""
    import torch

    q, k, v = map(torch.from_numpy, (q, k, v))
    bias = None if mask is None else torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~torch.from_numpy(mask), -torch.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias, scale=scale)
    return out.numpy(), lse.numpy()
