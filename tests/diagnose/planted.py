"""A ring in NumPy with (out, lse) of each step, on ranks that are turns of a loop, and what public projects did wrong in
theirs: `wrong` is the id of a mistake. It shares no code with the simulator."""

import itertools

import numpy as np

INF = np.inf
OF_HYBRIDS = ("world-placement", "swapped-axes")
LATE = itertools.cycle((False, True))  # does a parcel arrive after it is used? The second of two runs


def seen_by(words, queries, keys, wrong, owner):
    """The mask of a step, from the positions of the queries of a rank and of the keys of their owner."""
    i, j = np.array(queries)[:, None] + words.get("first_query", 0) * (wrong != "query-offset"), np.array(keys)
    places = np.arange(len(queries))[:, None], np.arange(len(keys))
    seen = (j >= words.get("hidden_keys", 0)) & (i >= 0)
    if words["causal"]:
        longest = max(map(len, words["tokens_of_rank"]))
        at, to = {"mask-local": places, "keys-in-rank-order": (i, owner * longest + places[1])}.get(wrong, (i, j))
        seen &= to <= at
    if "window" in words:
        at, to = places if wrong == "window-local-right" else (i, j)
        seen &= (at - to < words["window"]) & (to <= at)
    elif wrong == "window-sentinel":  # (-1, -1) is (left, right)
        seen &= (i - j <= -1) & (j - i <= -1)
    if wrong == "length-over-ranks":
        seen &= (places[0] < words["real"]) & (places[1] < words["real"])
    if "cu_seqlens" in words:
        ends = np.array(words["cu_seqlens"][1:])
        seen &= (i[..., None] >= ends).sum(-1) == (j[:, None] >= ends).sum(-1)
    return seen


def kernel(q, k, v, seen, words, bias):
    """out and lse of the keys at hand; no key: 0 and -inf."""
    g = words["heads"] // words["kv_heads"]
    scores = words["scale"] * q @ np.repeat(k, g, 1).swapaxes(2, 3) + bias
    scores = np.where(seen, scores, -INF)
    m = scores.max(3, keepdims=True, initial=-1e30)
    p = np.exp(scores - m)
    l = p.sum(3, keepdims=True)
    with np.errstate(divide="ignore"):
        return (p / np.where(l > 0, l, 1)) @ np.repeat(v, g, 1), np.where(l > 0, m + np.log(l), -INF)[..., 0]


def kernel_backward(q, k, v, out, lse, dout, seen, words, bias, wrong):
    g = words["heads"] // words["kv_heads"]
    if wrong == "kv-transposed-twice":  # [tokens, heads], where the kernel takes [heads, tokens]
        k, v = (np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape) for x in (k, v))
    if wrong == "lse-scaled-backward":
        lse = words["scale"] * lse
    keys, values = (np.repeat(x, g, 1) for x in (k, v))
    scores = np.where(seen, words["scale"] * q @ keys.swapaxes(2, 3) + bias, -INF)
    p = np.where(lse[..., None] == -INF, 0, np.exp(scores - np.where(lse == -INF, 0, lse)[..., None]))
    ds = p * (dout @ values.swapaxes(2, 3) - (dout * out).sum(3, keepdims=True))
    sums = lambda x: x.reshape(len(x), -1, g, *x.shape[2:]).sum(2)  # noqa: E731
    dq, dk = words["scale"] * ds @ keys, sums(words["scale"] * ds.swapaxes(2, 3) @ q)
    return dq, dk, sums(p.swapaxes(2, 3) @ dout), ds


def merged(out, lse, new_out, new_lse):
    """By the sigmoid form."""
    with np.errstate(invalid="ignore", over="ignore"):
        old = lse.copy()
        lse = np.where(new_lse == -INF, old, np.logaddexp(old, new_lse))
        weight = np.where(new_lse == -INF, 0, np.exp(new_lse - lse))
        return out - weight[..., None] * (out - new_out), lse


def misread(lse, words, positions, wrong):
    if wrong == "lse-other-layout":  # the kernel writes [tokens, heads], the merge takes [heads, tokens]
        return np.ascontiguousarray(lse.swapaxes(1, 2)).reshape(lse.shape)
    if wrong == "lse-padded-offset":
        ends = np.array(words.get("cu_seqlens", [0, 10**9])[1:])
        of_document = [(np.array(positions)[:, None] >= ends).sum(1) == d for d in range(len(ends))]
        lengths = [some.sum() for some in of_document if some.any()]
        padded = np.zeros((*lse.shape[:2], len(lengths), max(lengths)), lse.dtype)
        for d, some in enumerate(some for some in of_document if some.any()):
            padded[:, :, d, : lengths[d]] = lse[:, :, some]
        return padded.reshape(*lse.shape[:2], -1)[:, :, : lse.shape[2]]
    return lse


def ring(words, arrays, wrong="", dtype=np.float32):
    """{name: arrays of the ranks} of out, lse, dq, dk and dv, [batch, heads, tokens of the rank, dim]."""
    shards, ranks = words["tokens_of_rank"], len(words["tokens_of_rank"])
    of_queries = words.get("queries_of_rank", shards)
    taken = shards  # the positions that the mask takes the keys of a rank to have
    if wrong == "world-placement":
        shards = of_queries = [held(rank, ranks, 1, words["tokens"]) for rank in range(ranks)]
    if wrong == "swapped-axes":
        taken = [held(rank, ranks, ranks // words["ulysses"], words["tokens"]) for rank in range(ranks)]
    words = {**words, "real": words["tokens"] // ranks}
    q, dout = ([arrays[name].astype(dtype)[:, :, here] for here in of_queries] for name in ("q", "dout"))
    k, v = ([arrays[name].astype(dtype)[:, :, here] for here in shards] for name in "kv")
    slopes = np.array(words.get("alibi_slopes", [0] * words["heads"]), dtype)[:, None, None]

    def step(rank, owner):
        i, j = np.array(of_queries[rank]), np.array(shards[owner])
        bias = -slopes * abs(i[:, None] + words.get("first_query", 0) - j)
        if "bias" in arrays:
            bias = bias + arrays["bias"].astype(dtype)[:, :, i][..., j]
        at, to = (taken[rank], taken[owner]) if wrong in OF_HYBRIDS else (i, j)
        return seen_by(words, at, to, wrong, owner), words, bias

    late = wrong == "race" and next(LATE)
    found, pieces = {name: [] for name in ("out", "lse")}, {}
    for rank in range(ranks):
        out, lse = np.zeros((*q[rank].shape[:3], v[0].shape[3]), dtype), np.full(q[rank].shape[:3], -INF, dtype)
        for t in range(ranks):
            owner = (rank - t) % ranks
            there = rank if late and rank == t == 1 else owner
            piece, piece_lse = kernel(q[rank], k[there], v[there], *step(rank, owner))
            out, new_lse = merged(out, lse, piece, misread(piece_lse, words, of_queries[rank], wrong))
            pieces[rank, t] = piece, new_lse, new_lse.copy()
            if "saved-lse-overwritten" in wrong and t and (owner > rank or not words["zigzag"]):
                lse[:] = new_lse  # in place, as where the second half of the queries takes part
            else:
                lse = new_lse
        if "sinks" in words:
            with_sink = np.logaddexp(lse, np.array(words["sinks"], dtype)[:, None])
            out, lse = out * np.exp(lse - with_sink)[..., None], with_sink
        found["out"].append(out)
        found["lse"].append(lse)
    dq, dk, dv = ([np.zeros_like(x) for x in some] for some in (q, k, v))
    buffers = [np.empty_like(x) for x in q]
    sinks = "sinks" in words
    more = {"dsinks": [-(np.exp(np.array(words["sinks"])[:, None] - lse) * (d * out).sum(3)).sum(2)
                       for lse, d, out in zip(found["lse"], dout, found["out"])]} if sinks else {}
    more |= {"dbias": [np.zeros((*x.shape[:3], words["tokens"]), dtype) for x in q]} if "bias" in arrays else {}
    for rank in range(ranks):
        for t in range(ranks):
            owner, (seen, _, bias) = (rank - t) % ranks, step(rank, (rank - t) % ranks)
            if not seen.any():
                continue
            given = q[rank], k[owner], v[owner], found["out"][rank], found["lse"][rank], dout[rank]
            if "delta-of-step" in wrong:
                given = *given[:3], pieces[rank, t][0], *given[4:]
            if "saved-lse-overwritten" in wrong and t == 0:  # P = e^(s - lse of the step), and dO times the step's weight
                _, saved, copy = pieces[rank, t]
                weight = np.exp(copy - np.where(copy == -INF, 0, given[4]))
                given = *given[:4], saved, weight[..., None] * dout[rank]
            part, dk_part, dv_part, ds = kernel_backward(*given, seen, words, bias, wrong)
            if wrong == "dv-without-l":
                dv_part = without_l(given, seen, words, bias, [step(rank, o) for o in range(ranks)], k, q[rank])
            to = (rank + t) % ranks if wrong == "dkdv-wrong-way" else owner
            for sums, sum_part in ((dk[to], dk_part), (dv[to], dv_part)):
                sums[:, :, : sum_part.shape[2]] += sum_part[:, :, : sums.shape[2]]
            if "dbias" in more:
                more["dbias"][rank][..., shards[owner]] = ds
            if wrong != "dq-one-buffer":
                dq[rank] += part
                continue
            half, buffer = part.shape[2] // 2, buffers[rank]
            if words["zigzag"] and t and owner > rank:  # the second half of the queries, in the first rows
                buffer[:, :, :half] = part[:, :, half:]
                dq[rank][:, :, half:] += buffer[:, :, :half]
            else:
                buffer[:] = part
                dq[rank] = buffer.astype(dtype, copy=False) if t == 0 else np.add(dq[rank], buffer, out=dq[rank])
    found.update(dq=dq, dk=dk, dv=dv, **more)
    if wrong == "length-over-ranks":
        for name, empty in (("out", 0), ("lse", -INF), ("dq", 0)):
            for array in found[name]:
                array[:, :, words["real"]:] = empty
    if wrong in OF_HYBRIDS:
        return {name: [in_order(arrays, shards)] for name, arrays in found.items()}
    return found


def without_l(given, seen, words, bias, steps, k, q):
    """dV with P = e^(s - m)."""
    _, key, _, _, _, dout = given
    g = words["heads"] // words["kv_heads"]
    scores_of = lambda keys, seen, bias: np.where(  # noqa: E731
        seen, words["scale"] * q @ np.repeat(keys, g, 1).swapaxes(2, 3) + bias, -INF)
    m = np.max([scores_of(keys, s, b).max(3) for keys, (s, _, b) in zip(k, steps)], axis=0)
    p = np.exp(scores_of(key, seen, bias) - np.where(m == -INF, 0, m)[..., None])
    return (p.swapaxes(2, 3) @ dout).reshape(len(q), -1, g, p.shape[3], dout.shape[3]).sum(2)


def held(rank, ranks, ulysses, tokens):
    """The tokens of a rank of a hybrid in zigzag: a slice of the shard that `ulysses` ranks share."""
    parts, shard = np.split(np.arange(tokens), 2 * ranks // ulysses), rank // ulysses
    return np.split(np.append(parts[shard], parts[-1 - shard]), ulysses)[rank % ulysses].tolist()


def in_order(of_ranks, tokens_of_rank):
    """The ranks' rows in the order of the sequence."""
    rows = np.concatenate(of_ranks, axis=2)
    found = np.empty_like(rows)
    found[:, :, np.concatenate(tokens_of_rank)] = rows
    return found


def joined(of_ranks, placement):
    """The ranks' rows put together in the order of a placement."""
    ranks, tokens = len(of_ranks), sum(x.shape[2] for x in of_ranks)
    parts = np.array_split(np.arange(tokens), 2 * ranks)
    order = [np.append(parts[r], parts[-1 - r]) if placement == "zigzag" else np.arange(r, tokens, ranks)
             for r in range(ranks)]
    return in_order(of_ranks, order)


def decoded(words, arrays, wrong=""):
    """out and lse of each rank, which merges the results of all for its own query."""
    shards, (q, k, v) = words["tokens_of_rank"], (arrays[name] for name in "qkv")
    length = max(map(len, shards))
    filled = []
    for rank, mine in enumerate(shards):
        cache = np.zeros((2, *k.shape[:2], length, k.shape[3]))
        for token in range(words["tokens"]):
            slot = token if wrong == "slots-of-whole-cache" else mine.index(token) if token in mine else length
            if slot < length:
                cache[:, :, :, slot] = k[:, :, token], v[:, :, token]
        filled.append(cache[:, :, :, : len(mine)])
    for rank, mine in enumerate(shards):
        here = [token for token in mine if token >= words.get("hidden_keys", 0)]
        mine_q = 0 * q if wrong == "query-zero-without-keys" and not here else q
        out, lse = np.zeros_like(q), np.full(q.shape[:3], -INF)
        for keys, (k_of, v_of) in zip(shards, filled):
            seen = np.array(keys) >= words.get("hidden_keys", 0)
            out, lse = merged(out, lse, *kernel(mine_q, k_of, v_of, seen, words, 0))
        yield out, lse
