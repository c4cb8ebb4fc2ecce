"""The keywords that say which keys a query sees, checked."""

from __future__ import annotations

import operator

import numpy as np


def boundaries(documents):
    """The keyword `documents` as a list of integers that starts with 0, which may be left out; None stays None."""
    if documents is None:
        return None
    documents = [operator.index(boundary) for boundary in documents]
    return [0, *documents] if documents and documents[0] != 0 else documents


def documents_of(documents, keys):
    """The keyword `documents`, checked. `keys`: where the last one ends, or None."""
    documents = boundaries(documents)
    if documents is not None and (not documents or keys not in (None, documents[-1]) or sorted(documents) != documents):
        raise ValueError("documents are boundaries: they start with 0 (or leave it out), never decrease, and end with "
                         f"{keys}, the number of keys")
    return documents


def window_of(window):
    """The keyword `window`, checked."""
    if window is None:
        return None
    window = tuple(int(side) for side in window)
    if len(window) != 2 or min(window) < -1:
        raise ValueError("window is (left, right): each side a number of keys, or -1 for all")
    return window


def pairs_of(name, pairs):
    """A keyword of intervals as a list of [begin, end]; None is an empty list."""
    if pairs is None:
        return []
    pairs = np.asarray(pairs)
    if pairs.size == 0:
        return []
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise ValueError(f"{name}: give a list of (begin, end), where end is the position after the last key")
    return pairs.tolist()


def _tokens(name, count):
    if count is not None and operator.index(count) < 1:
        raise ValueError(f"{name} is {count}: it must be a number of tokens, at least 1, or None")
    return 0 if count is None else operator.index(count)


#: The keywords of masks that may say several intervals of keys.
OF_SEVERAL_INTERVALS = ("prefix", "blocks", "sink_tokens", "global_tokens", "chunk", "intervals")


def set_intervals(words, prefix, blocks, sink_tokens, global_tokens, chunk, intervals):
    """The keywords of masks that say several intervals of keys."""
    words.blocks = ([] if prefix is None else [(0, _tokens("prefix", prefix))]) + pairs_of("blocks", blocks)
    words.sink_tokens, words.chunk = _tokens("sink_tokens", sink_tokens), _tokens("chunk", chunk)
    words.global_tokens = pairs_of("global_tokens", global_tokens)
    if intervals is not None:
        intervals = np.asarray(intervals)
        if intervals.ndim != 3 or intervals.shape[1] < 1 or intervals.shape[2] != 2 or intervals.dtype.kind not in "iu":
            raise ValueError(f"intervals are {intervals.dtype} {list(intervals.shape)}: give integers [Sq, m, 2], begin and end of "
                             "m intervals of keys for each query")
        words.intervals = intervals.shape[1], intervals.ravel().tolist()
