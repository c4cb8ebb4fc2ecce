"""Attention and its gradients in double and in plain Python: slow, obvious, and written without the library."""

import math
import random
from dataclasses import dataclass


@dataclass
class Problem:
    """Flat lists q, k, v (and dout); shapes are (B, H, S, D), and v and dout have `value_dim` columns (default: D).
    `sees` and `bias` say what a pair of positions is to each other: query i is at token i + offset. `dense_bias(b,
    h, i, j)` and `factor(b, h, i, j)`, that of the dropout, take the index of the query. `sinks` has one logit a
    head."""

    q: list
    k: list
    v: list
    q_shape: tuple
    kv_shape: tuple
    dout: list = None
    scale: float = None
    offset: int = 0
    sees: object = lambda query, key: True
    bias: object = lambda head, query, key: 0.0
    dense_bias: object = lambda b, h, i, j: 0.0
    factor: object = lambda b, h, i, j: 1.0
    sinks: list = None
    value_dim: int = None
    softcap: float = None

    def __post_init__(self):
        if self.scale is None:
            self.scale = 1 / math.sqrt(self.q_shape[3])
        self.group = self.q_shape[1] // self.kv_shape[1]
        self.value_dim = self.value_dim or self.q_shape[3]
        self.out_shape, self.v_shape = ((*shape[:3], self.value_dim) for shape in (self.q_shape, self.kv_shape))

    def attend(self):
        """(out, lse)"""
        out, lse = [], []
        for b, h, i in self.rows():
            weights, row_lse = self.weights(b, h, i)
            weights = [w * self.factor(b, h, i, j) for j, w in enumerate(weights)]
            values = [row(self.v, self.v_shape, b, h // self.group, j) for j in range(self.kv_shape[2])]
            out += [math.fsum(w * value[d] for w, value in zip(weights, values)) for d in range(self.value_dim)]
            lse.append(row_lse)
        return out, lse

    def differentiate(self):
        """(dq, dk, dv); self.dbias[b, h, i, j] and self.dsinks[h] are the gradients of the other two"""
        dq, dk, dv = [0.0] * len(self.q), [0.0] * len(self.k), [0.0] * len(self.v)
        self.dbias, self.dsinks = {}, [0.0] * self.q_shape[1]
        for b, h, i in self.rows():
            weights, lse = self.weights(b, h, i)
            query, grad = row(self.q, self.q_shape, b, h, i), row(self.dout, self.out_shape, b, h, i)
            factors = [self.factor(b, h, i, j) for j in range(self.kv_shape[2])]
            grad_weights = [
                f * dot(grad, row(self.v, self.v_shape, b, h // self.group, j)) for j, f in enumerate(factors)
            ]
            mean = math.fsum(w * g for w, g in zip(weights, grad_weights))
            if self.sinks:
                self.dsinks[h] -= math.exp(self.sinks[h] - lse) * mean
            for j, (w, g) in enumerate(zip(weights, grad_weights)):
                self.dbias[b, h, i, j] = w * (g - mean)
                key = row(self.k, self.kv_shape, b, h // self.group, j)
                grad_score = self.scale * w * (g - mean)
                if self.softcap:
                    grad_score *= 1 - math.tanh(self.scale * dot(query, key) / self.softcap) ** 2
                add(dq, self.q_shape, (b, h, i), grad_score, key)
                add(dk, self.kv_shape, (b, h // self.group, j), grad_score, query)
                add(dv, self.v_shape, (b, h // self.group, j), w * factors[j], grad)
        return dq, dk, dv

    def rows(self):
        batch, heads, queries, _ = self.q_shape
        return ((b, h, i) for b in range(batch) for h in range(heads) for i in range(queries))

    def weights(self, b, h, i):
        """The softmax of one row and its lse; a row that sees nothing is zero, and its lse -inf or its sink."""
        query, position, scores = row(self.q, self.q_shape, b, h, i), i + self.offset, []
        for j in range(self.kv_shape[2]):
            score = self.scale * dot(query, row(self.k, self.kv_shape, b, h // self.group, j))
            if self.softcap:
                score = self.softcap * math.tanh(score / self.softcap)
            score += self.bias(h, position, j) + self.dense_bias(b, h, i, j)
            scores.append(score if self.sees(position, j) else -math.inf)
        sink = self.sinks[h] if self.sinks else -math.inf
        top = max(*scores, sink)
        if top == -math.inf:
            return [0.0] * len(scores), top
        weights = [math.exp(score - top) for score in scores]
        total = math.fsum([*weights, math.exp(sink - top)])
        return [w / total for w in weights], top + math.log(total)


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


def row(array, shape, b, h, s):
    begin = ((b * shape[1] + h) * shape[2] + s) * shape[3]
    return array[begin : begin + shape[3]]


def add(array, shape, place, factor, values):
    begin = ((place[0] * shape[1] + place[1]) * shape[2] + place[2]) * shape[3]
    for d, value in enumerate(values):
        array[begin + d] += factor * value


def random_values(shape, seed):
    """Numbers that float16 holds exactly, so that every type of file holds the same problem."""
    source = random.Random(seed)
    return [source.randint(-2048, 2048) / 1024 for _ in range(math.prod(shape))]


def worst_error(got, want):
    """The largest difference; equal infinities differ by nothing, NaN by an infinity."""
    assert len(got) == len(want)
    differences = [0.0 if a == b else abs(a - b) for a, b in zip(got, want)]
    return max((math.inf if math.isnan(d) else d for d in differences), default=0.0)


def dropout_factor(probability, seed):
    """factor(b, h, i, j) of `--dropout P --dropout-seed N`, from its definition."""
    threshold = math.floor((1 - probability) * 2**32)

    def factor(b, h, i, j):
        word = seed
        for number in (0, 0, b, h, i):  # step, layer, ...
            word = split_mix(word) ^ number
        word = split_mix(word)
        x = (word ^ j * 0x9E3779B9) % 2**32
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x + (word >> 32)) % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return 2**32 / threshold if x ^ x >> 16 < threshold else 0.0

    return factor


def split_mix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31
