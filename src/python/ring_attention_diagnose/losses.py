"""Which rule a job whose ranks share sequences follows when it adds the losses of their tokens, and when it forms the
norm of its gradients."""

from __future__ import annotations

import dataclasses
import math
from typing import Sequence

import numpy as np

from .placement import InputError, refuse
from .rounding import random_array


@dataclasses.dataclass(frozen=True)
class Losses:
    """What was found."""

    right: bool
    says: tuple[str, ...]  #: the rules that give the reported numbers: that of a right job alone, or mistakes
    hidden: tuple[str, ...]  #: of a right job: the mistakes that would give the same numbers here
    report: str


_SHIFTED = "labels are shifted inside a shard: its last token has none"
_ROLLED = "labels are rolled over the end of a document, or into padding"
_OWN = "a rank divides by its own labels, and the ranks average"


def _rules(kept: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
    """What each rank reports, by rule: a number for each.

    :param kept: of each rank, the losses of its tokens that have labels; then without the labels that a shift inside the
    shard loses
    """
    (sums, kept_sums), (counts, kept_counts) = (np.array([[add(of_rank) for of_rank in some] for some in kept], float)
                                                for add in (np.sum, len))
    of_own, kept_means = sums / counts, np.where(kept_counts > 0, kept_sums / np.maximum(kept_counts, 1), 0)
    means, every, mean = np.where(counts > 0, of_own, 0), np.ones(len(sums)), sums.sum() / counts.sum()
    rules = {
        "the sum over all tokens, divided by the number of all labels": mean * every,
        _OWN: means.mean() * every,
        _SHIFTED: kept_sums.sum() / kept_counts.sum() * every,
        f"{_SHIFTED}; and {_OWN}": kept_means.mean() * every,
        "a rank reports the mean over its own tokens": means,
        "a rank reports its share: the sum over its own tokens, divided by the number of all labels": sums / counts.sum(),
        f"{_SHIFTED}; and a rank reports the mean over its own tokens": kept_means,
        "the sum is not divided by the number of labels": sums.sum() * every,
        "the mean is multiplied by the ranks: each has the whole sum and the ranks add, or a factor for data parallelism "
        "that averages": len(sums) * mean * every,
        "the mean is divided by the ranks: each has its share, and the ranks average": mean / len(sums) * every,
    }
    if not counts.all():
        rules["a rank without labels divides 0 by 0, and the ranks average"] = math.nan * every
        rules["a rank without labels divides 0 by 0, and reports its own mean"] = of_own
    return rules


def _numbers(name: str, remedy: str, *given) -> list[np.ndarray]:
    try:
        return [np.asarray(one, float) for one in given]
    except (TypeError, ValueError) as error:
        raise InputError(name, "these are not numbers", remedy) from error


def _checked(reported, of_tokens, tokens_of_rank, documents) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    try:
        loss, numbers = np.asarray(of_tokens, float), np.atleast_1d(np.asarray(reported, float))
        shards = [np.asarray(shard, int).reshape(-1) for shard in tokens_of_rank]
        documents = [int(begin) for begin in documents]
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
        (documents != sorted({0, loss.size, *documents}) and documents != [], "documents are no cu_seqlens",
         f"give 0, where the others begin, and {loss.size}"),
    )
    return numbers * np.ones(ranks), loss, shards


def _fitting(numbers: np.ndarray, rules: dict[str, np.ndarray], tolerance: float, one: bool) -> list[str]:
    fits = []
    for says, wanted in rules.items():
        close = (abs(numbers - wanted) <= tolerance * np.maximum(abs(wanted), 1e-300)) | np.isnan(numbers) & np.isnan(wanted)
        if close.all():
            fits.append(says)
        elif one and close.any():  # the one number is that of one rank
            fits.append(f"{says} (of rank {int(np.flatnonzero(close)[0])} alone)")
    return fits


def _found(title: str, numbers: np.ndarray, rules: dict[str, np.ndarray], tolerance: float, one: bool = False) -> Losses:
    """Which of the rules give these numbers. The first rule is right."""
    right, fits = next(iter(rules)), _fitting(numbers, rules, tolerance, one)
    if right in fits:
        return Losses(True, (right,), tuple(fits[1:]), f"{title:<10} right: {right}\n" + "".join(
            f"    the same here: {says}\n" for says in fits[1:]))
    shown = ", ".join(f"{number:.6g}" for number in dict.fromkeys(numbers.tolist()))
    wanted, rule = rules[right][0], "; or ".join(fits) + "\n    lesson     13"
    if not fits:
        ratio = float(numbers.mean() / wanted) if wanted else math.nan
        rule = f"by no rule that is known here (on average {ratio:.4g} times as much)"
    return Losses(False, tuple(fits), (), f"{title:<10} WRONG: {shown}, where {wanted:.6g} is right: {rule}\n")


def losses(reported: float | Sequence[float], of_tokens: Sequence[float], tokens_of_rank: Sequence[Sequence[int]],
           tolerance: float = 1e-5, *, documents: Sequence[int] = (), depth: int = 1,
           gradient: Sequence[float] | None = None) -> Losses:
    """Names the rule that gives the loss which a job reports.

    :param reported: what the job printed: one number, or that of each rank
    :param of_tokens: the loss of each token of the sequence, from one device; NaN for a token without a label
    :param tokens_of_rank: the positions of each rank's tokens, in the order of its memory
    :param tolerance: of a number, times its size
    :param documents: where packed documents, and padding, begin and end (cu_seqlens): their last `depth` tokens have no
    label, whatever of_tokens has for them
    :param depth: how many tokens ahead a label is (multi-token prediction)
    :param gradient: of the job's loss with respect to the loss of each token, from its backward: is it the derivative?
    :raises InputError: one line
    """
    numbers, loss, shards = _checked(reported, of_tokens, tokens_of_rank, documents)
    number_of = lambda position: np.searchsorted(list(documents)[1:], position, side="right")  # noqa: E731
    place = np.arange(loss.size)
    crosses = number_of(place) != number_of(place + depth) if documents else np.zeros(loss.size, bool)

    def rules_for(x: np.ndarray) -> dict[str, np.ndarray]:
        """The rules, of other losses of the same tokens."""
        def rules_of(labelled: np.ndarray) -> dict[str, np.ndarray]:
            return _rules([[x[here][labelled[here]] for here in (shard[: len(shard) - lost] for shard in shards)]
                           for lost in (0, depth)])

        rules = rules_of(np.isfinite(loss) & ~crosses)
        if np.isfinite(loss[crosses]).any():
            rolled = rules_of(np.isfinite(loss))
            rules.update({_ROLLED: rolled[next(iter(rules))], f"{_ROLLED}; and {_OWN}": rolled[_OWN]})
        return rules

    with np.errstate(all="ignore"):
        found = _found("losses", numbers, rules_for(loss), tolerance, np.size(reported) == 1)
        if gradient is None:
            return found
        # A rule is linear in the losses: its gradient times any losses is what it gives for them.
        others = [random_array(loss.shape, seed, 98) for seed in range(3)]
        rules = [rules_for(x) for x in others]
        of_all = {says: np.array([of_x[says][0] for of_x in rules]) for says in rules[0]
                  if all(np.ptp(of_x[says]) == 0 for of_x in rules)}
        of_job = np.array([np.nansum(_gradient_of(gradient, loss) * x) for x in others])
        second = _found("gradient", of_job, of_all, max(tolerance, 1e-4))
    rule = "; or ".join(second.says) or "by no rule that is known here"
    text = second.report if second.right else f"gradient   WRONG: not that of the right loss, but: {rule}\n    lesson     13\n"
    return Losses(found.right and second.right, found.says if not found.right else second.says,
                  found.hidden, found.report + text)


def _gradient_of(gradient: Sequence[float], loss: np.ndarray) -> np.ndarray:
    (found,) = _numbers("gradient", "give an array like of_tokens", gradient)
    refuse("gradient", (found.shape != loss.shape, f"it has the shape {list(found.shape)}", "give an array like of_tokens"))
    return found


def norms(reported: float, of_parameters: Sequence[float], copies: Sequence[int], tolerance: float = 1e-5) -> Losses:
    """Names the rule that gives the norm of all gradients which a job reports.

    :param of_parameters: the norm of each parameter's gradient, from one device
    :param copies: of each parameter, on how many ranks it is whole; 1: the ranks share it
    :raises InputError: one line
    """
    number, squares, times = _numbers("norms", "give lists of numbers, or NumPy arrays", reported, of_parameters, copies)
    refuse("norms", (number.size != 1, "the job reports one norm", "give a number"),
           (squares.ndim != 1 or squares.shape != times.shape or not squares.size,
            "of_parameters and copies are not one number for each parameter", "give two arrays of one length"),
           (not (times >= 1).all(), "a parameter has less than one copy", "give 1 where ranks share it"))
    squares, ranks = squares**2, times.max()
    whole = math.sqrt(squares.sum())
    return _found("norm", number.reshape(1), {says: np.array([value]) for says, value in {
        "the root of the sum of squares, where each parameter counts once": whole,
        "a parameter that several ranks have counts once for each of them": math.sqrt((times * squares).sum()),
        "the squares are averaged over the ranks": math.sqrt((times * squares).sum() / ranks),
        "a parameter that several ranks have is left out": math.sqrt(squares[times == 1].sum()),
        "the root is not taken": whole**2,
        "the gradients are multiplied by the ranks": ranks * whole,
        "the gradients are divided by the ranks": whole / ranks,
    }.items()}, tolerance)
