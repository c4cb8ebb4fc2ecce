"""The types that a code may compute in, rounding to them, and random arrays that are a function of their seed."""

from __future__ import annotations

import numpy as np

PRECISIONS = ("float64", "float32", "fp16", "bf16")  #: from the finest; fp16 also stands for TF32: both have 11 digits

PRECISION_OF = {"float64": "float64", "float32": "float32", "float16": "fp16", "bfloat16": "bf16"}


def coarser(*precisions: str) -> str:
    return max(precisions, key=PRECISIONS.index)


def sums_of(precision: str) -> str:
    """What a code in that type computes with: sums, maxima and lse are in float at least."""
    return min(precision, "float32", key=PRECISIONS.index)


def rounded(x: np.ndarray, precision: str) -> np.ndarray:
    """The nearest numbers of that type; beyond its range infinity. fp16: without the limits of its exponent."""
    if precision == "float64":
        return x
    if precision == "fp16":
        significand, exponent = np.frexp(x)
        return np.ldexp(np.rint(np.ldexp(significand, 11)), exponent - 11)
    x = np.asarray(x, np.float32)
    if precision == "bf16":
        bits = x.view(np.uint32)
        nearest = (bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)) & 0xFFFF0000
        x = np.where(np.isnan(x), x, nearest.astype(np.uint32).view(np.float32))
    return x.astype(np.float64)


def product(a: np.ndarray, b: np.ndarray, sums: str) -> np.ndarray:
    """a b, summed in float unless `sums` is finer."""
    if sums == "float64":
        return a @ b
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def mixed(number: int) -> int:
    return int(_mix(np.array([number % 2**64], np.uint64))[0])


def random_array(shape: tuple[int, ...], seed: int, stream: int) -> np.ndarray:
    """Uniform in [-sqrt 3, sqrt 3): variance 1. The same numbers as those of the C++ library."""
    key = np.uint64(mixed(seed ^ mixed(stream)))
    counter = np.arange(int(np.prod(shape)), dtype=np.uint64)
    unit = (_mix(key ^ _mix(counter)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (1.7320508075688772 * (2 * unit - 1)).reshape(shape)
