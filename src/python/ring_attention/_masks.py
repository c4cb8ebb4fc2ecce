"""The keywords that say which keys a query sees, checked."""

from __future__ import annotations

import operator
import re

import numpy as np

FARTHEST = 1 << 53  # of all positions
MOST = (1 << 31) - 1  # of what is counted


def integer(name, number, least, most=FARTHEST, also=""):
    """An integer, checked."""
    try:
        if least <= (index := operator.index(number)) <= most:
            return index
    except TypeError:
        pass
    raise ValueError(f"{name} is {number!r}: it must be a whole number from {least} to {most}{also}")


def boundaries(documents):
    """The keyword `documents` as a list of integers that starts with 0, which may be left out; None stays None."""
    if documents is None:
        return None
    try:
        documents = [operator.index(boundary) for boundary in documents]
    except TypeError:
        raise TypeError("documents are boundaries: give whole numbers") from None
    if documents and not -FARTHEST <= min(documents) <= max(documents) <= FARTHEST:
        raise ValueError("documents are boundaries: positions up to 2^53")
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
    try:
        left, right = map(operator.index, window)
    except (TypeError, ValueError):
        left = right = -2
    if not (-1 <= left <= FARTHEST and -1 <= right <= FARTHEST):
        raise ValueError(f"window is {window!r}: it must be (left, right), each side a whole number of keys up to 2^53, or -1 for all")
    return left, right


def are_positions(array):
    return array.dtype.kind in "iu" and (array.size == 0 or -FARTHEST <= array.min() <= array.max() <= FARTHEST)


def pairs_of(name, pairs):
    """A keyword of intervals as a list of [begin, end]; None is an empty list."""
    if pairs is None:
        return []
    pairs = np.asarray(pairs)
    if pairs.size == 0:
        return []
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not are_positions(pairs):
        raise ValueError(f"{name}: give a list of (begin, end), where end is the position after the last key")
    return pairs.tolist()


def _tokens(name, count):
    return 0 if count is None else integer(name, count, 1, also=", or None")


#: The keywords of masks that may say several intervals of keys.
OF_SEVERAL_INTERVALS = ("prefix", "blocks", "sink_tokens", "global_tokens", "chunk", "intervals")


def refuse_several_intervals(words, call):
    """\throws ValueError for a mask of several intervals, which `call` has not."""
    for word in OF_SEVERAL_INTERVALS:
        if words.get(word) is not None and np.size(words[word]):
            raise ValueError(f"{word}: {call} has the masks causal, window and documents")


def set_intervals(words, prefix, blocks, sink_tokens, global_tokens, chunk, intervals):
    """The keywords of masks that say several intervals of keys; the others of `words` are set."""
    if prefix is blocks is sink_tokens is global_tokens is chunk is intervals is None:
        return
    words.blocks = ([] if prefix is None else [(0, _tokens("prefix", prefix))]) + pairs_of("blocks", blocks)
    words.sink_tokens, words.chunk = _tokens("sink_tokens", sink_tokens), _tokens("chunk", chunk)
    words.global_tokens = pairs_of("global_tokens", global_tokens)
    if not (words.window or words.chunk):  # the rule of the flags: program/run/mask_flags.cpp
        for name, given in (("sink_tokens", words.sink_tokens), ("global_tokens", words.global_tokens)):
            if given:
                raise ValueError(f"{name} changes nothing without window or chunk")
        if words.blocks and not words.causal:
            raise ValueError(f"{'blocks' if prefix is None else 'prefix'} changes nothing without causal, window or chunk")
    if intervals is not None:
        if words.blocks or words.sink_tokens or words.global_tokens or words.chunk:
            raise ValueError("intervals are a whole mask: without prefix, blocks, sink_tokens, global_tokens and chunk")
        intervals = np.asarray(intervals)
        if intervals.ndim != 3 or intervals.shape[1] < 1 or intervals.shape[2] != 2 or not are_positions(intervals):
            raise ValueError(f"intervals are {intervals.dtype} {list(intervals.shape)}: give integers [Sq, m, 2], begin and end of "
                             "m intervals of keys for each query")
        words.intervals = intervals.shape[1], intervals.ravel().tolist()


_LIBRARYS = re.compile(r"mask\.(left|right|offset) (-?\d+)")


def with_keywords(text):
    """An error of the library, with the keywords for the members of its Mask."""
    return _LIBRARYS.sub(_keyword_of, text)


def _keyword_of(found):
    member, number = found[1], int(found[2])
    unlimited = number == (2**63 - 1) // 4  # Mask::unlimited
    if member == "offset":
        return f"q_offset {number}"
    if member == "left":
        return "no left side of window (None, or -1)" if unlimited else f"window=({number}, ...)"
    if unlimited:
        return "causal=False and no right side of window (None, or -1)"
    return f"window=(..., {number})" if number else "causal=True, or window=(..., 0)"
