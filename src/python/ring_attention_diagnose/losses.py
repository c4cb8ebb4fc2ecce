"""Which rule a job whose ranks share sequences follows when it adds the losses of their tokens."""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

import numpy as np

from .placement import InputError, refuse


@dataclasses.dataclass(frozen=True)
class Losses:
    """What was found."""

    right: bool
    says: tuple[str, ...]  #: the rules that give the reported numbers: that of a right job alone, or mistakes
    hidden: tuple[str, ...]  #: of a right job: the mistakes that would give the same numbers here
    report: str


def _rules(sums: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """What each rank reports, by rule. Of each rank: the sum of its losses, the number of its labels; in row 1 without
    the labels that a shift inside the shard loses."""
    means, kept_means = np.where(counts > 0, sums / np.maximum(counts, 1), 0)
    (sums, kept_sums), (counts, kept_counts) = sums, counts
    every, mean = np.ones(len(sums)), sums.sum() / counts.sum()
    shifted = "labels are shifted inside a shard: its last token has none"
    return {
        "the sum over all tokens, divided by the number of all labels": mean * every,
        "a rank divides by its own labels, and the ranks average": means.mean() * every,
        shifted: kept_sums.sum() / kept_counts.sum() * every,
        f"{shifted}; and a rank divides by its own labels, and the ranks average": kept_means.mean() * every,
        "a rank reports the mean over its own tokens": means,
        "a rank reports its share: the sum over its own tokens, divided by the number of all labels": sums / counts.sum(),
        f"{shifted}; and a rank reports the mean over its own tokens": kept_means,
        "the sum is not divided by the number of labels": sums.sum() * every,
        "the mean is multiplied by the ranks: each has the whole sum, and the ranks add": len(sums) * mean * every,
        "the mean is divided by the ranks: each has its share, and the ranks average": mean / len(sums) * every,
    }


def _checked(reported, of_tokens, tokens_of_rank) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    try:
        loss, numbers = np.asarray(of_tokens, float), np.atleast_1d(np.asarray(reported, float))
        shards = [np.asarray(shard, int).reshape(-1) for shard in tokens_of_rank]
    except (TypeError, ValueError) as error:
        raise InputError("losses", "these are not numbers", "give lists of numbers, or NumPy arrays") from error
    ranks = len(shards)
    refuse(
        "losses",
        (ranks == 0, "there is no rank", "give the positions of each rank's tokens"),
        (loss.ndim != 1, "of_tokens is not one loss for each token", "give an array of one axis"),
        (numbers.shape not in ((1,), (ranks,)), f"{numbers.size} losses for {ranks} ranks", "give one, or one a rank"),
        (ranks and sorted(np.concatenate(shards)) != list(range(loss.size)),
         f"tokens_of_rank has not each of the {loss.size} tokens once", "give positions from 0"),
        (not np.isfinite(loss).any(), "no token has a loss", "NaN stands for a token without a label"),
    )
    return numbers * np.ones(ranks), loss, shards


def losses(reported: float | Sequence[float], of_tokens: Sequence[float], tokens_of_rank: Sequence[Sequence[int]],
           tolerance: float = 1e-5) -> Losses:
    """Names the rule that gives the loss which a job reports.

    :param reported: what the job printed: one number, or that of each rank
    :param of_tokens: the loss of each token of the sequence, from one device; NaN for a token without a label
    :param tokens_of_rank: the positions of each rank's tokens, in the order of its memory
    :param tolerance: of a number, times its size
    :raises InputError: one line
    """
    numbers, loss, shards = _checked(reported, of_tokens, tokens_of_rank)
    summed = (shards, [shard[:-1] for shard in shards])
    with np.errstate(all="ignore"):
        rules = _rules(*(np.array([[add(loss[shard]) for shard in some] for some in summed])
                         for add in (np.nansum, lambda x: np.isfinite(x).sum())))
    right, fits = next(iter(rules)), []
    for says, wanted in rules.items():
        close = abs(numbers - wanted) <= tolerance * np.maximum(abs(wanted), 1e-300)
        if close.all():
            fits.append(says)
        elif np.size(reported) == 1 and close.any():  # the one number is that of one rank
            fits.append(f"{says} (of rank {int(np.flatnonzero(close)[0])} alone)")
    if right in fits:
        hidden = tuple(fits[1:])
        return Losses(True, (right,), hidden, f"losses     right: {right}\n" + "".join(
            f"    the same here: {says}\n" for says in hidden))
    shown = ", ".join(f"{number:.6g}" for number in dict.fromkeys(numbers.tolist()))
    wanted, rule = rules[right][0], "; or ".join(fits) + "\n    lesson     13"
    if not fits:
        ratio = float(numbers.mean() / wanted) if wanted else math.nan
        rule = f"by no rule that is known here (on average {ratio:.4g} times as much)"
    return Losses(False, tuple(fits), (), f"losses     WRONG: {shown}, where {wanted:.6g} is right: {rule}\n")
