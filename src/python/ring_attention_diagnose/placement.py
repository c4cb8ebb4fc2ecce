"""The ranks of the code that is to be tested, and where its tokens are."""

from __future__ import annotations

import dataclasses
import functools
from typing import Iterator

import numpy as np

PLACEMENTS = ("contiguous", "striped", "zigzag")
PARTITIONS = ("ring", "ulysses", "hybrid", "all-gather")
MOST_RANKS = 48
MOST_BLOCK, MOST_DIM = 128, 256
MOST_PAIRS = 5_000_000  #: of a query head and two tokens


class InputError(ValueError):
    """Bad input. One line: the culprit, the problem, the remedy."""

    def __init__(self, *parts: str):
        super().__init__(": ".join(parts))


def refuse(culprit: str, *faults: tuple[bool, str, str]) -> None:
    """:param faults: each: is it there, what is wrong, the remedy
    :raises InputError: for the first that is there"""
    for is_there, problem, remedy in faults:
        if is_there:
            raise InputError(culprit, problem, remedy)


def _part(items: list[int], number: int, parts: int) -> list[int]:
    """One of as many parts whose sizes differ by one at most, the longer ones first."""
    return np.array_split(items, parts)[number].tolist()


@functools.lru_cache(maxsize=None)
def _shard(placement: str, tokens: int, rank: int, ranks: int) -> list[int]:
    """The positions of the tokens of a rank of a ring, in the order of its memory."""
    everything = list(range(tokens))
    if placement == "contiguous":
        return _part(everything, rank, ranks)
    if placement == "striped":
        return everything[rank::ranks]
    return _part(everything, rank, 2 * ranks) + _part(everything, 2 * ranks - 1 - rank, 2 * ranks)


@dataclasses.dataclass(frozen=True)
class Job:
    """The ranks of the code that is to be tested."""

    ranks: int = 3
    placement: str = "contiguous"
    ulysses: int = 1  #: ranks that share the heads: 1 in a ring, all in Ulysses, some in a hybrid
    own: tuple[tuple[int, ...], ...] = ()  #: of the placement "own", for one case: the tokens of each rank
    # Sizes of its cases; 0: as they come.
    tokens: int = 0
    heads: int = 0
    dim: int = 16
    block: int = 1  #: divides the tokens of a rank, and of half a rank

    @property
    def ring(self) -> int:
        return self.ranks // self.ulysses

    def shard(self, rank: int, tokens: int, placement: str | None = None) -> list[int]:
        """The tokens of a rank of the ring."""
        if self.own and placement is None:
            return [token for part in self.own[rank * self.ulysses : (rank + 1) * self.ulysses] for token in part]
        return _shard(placement or self.placement, tokens, rank, self.ring)

    def tokens_of(self, rank: int, tokens: int) -> list[int]:
        """The tokens of a rank of the job."""
        if self.own:
            return list(self.own[rank])
        return _part(self.shard(rank // self.ulysses, tokens), rank % self.ulysses, self.ulysses)


def job_of(ranks: int, placement: str, parallel: str, ulysses: int, **sizes: int) -> Job:
    """`ulysses` counts for a hybrid alone. `sizes`: of the cases."""
    refuse("ranks", (not 1 <= ranks <= MOST_RANKS, f"it is {ranks}", f"use a number from 1 to {MOST_RANKS}"))
    shared = {"hybrid": ulysses, "ulysses": ranks}.get(parallel, 1)
    if shared < 1 or ranks % shared:
        raise InputError(f"Ulysses over {shared} rank{'s' * (shared != 1)}", f"the job has {ranks}",
                         "use a number that divides it")
    job = Job(ranks, placement, shared, **sizes)
    part = 2 * ranks * job.block
    refuse(
        "sizes of the cases",
        (not 1 <= job.block <= MOST_BLOCK, f"block is {job.block}", f"use a number from 1 to {MOST_BLOCK}"),
        (not 1 <= job.dim <= MOST_DIM, f"dim is {job.dim}", f"use a number from 1 to {MOST_DIM}"),
        (job.tokens < 0 or job.tokens % part or 0 < job.tokens < 16, f"{job.tokens} tokens",
         f"use a multiple of {part}, twice the ranks times the block, from 16 on"),
        (job.heads < 0 or job.heads % (2 * shared), f"{job.heads} heads", f"use a multiple of {2 * shared}"),
        (max(job.tokens, part) ** 2 * max(job.heads, 4) > MOST_PAIRS,
         "the heads times the square of the tokens are too many", f"use at most {MOST_PAIRS}: fewer tokens, heads or ranks"),
    )
    return job


def own_layout(case: str, tokens: int, ranks: int, layout) -> tuple[tuple[int, ...], ...]:
    """:raises InputError: unless it has a list for each rank, and each token once"""
    culprit, remedy = f"tokens_of_rank in the case {case}", f"give {ranks} lists that have 0 to {tokens - 1} once"
    try:
        own = tuple(tuple(int(token) for token in of_rank) for of_rank in layout)
    except (TypeError, ValueError) as error:
        raise InputError(culprit, "these are not lists of positions", remedy) from error
    refuse(culprit, (len(own) != ranks, f"{len(own)} lists for {ranks} ranks", remedy),
           (sorted(token for of_rank in own for token in of_rank) != list(range(tokens)),
            f"they do not have each of the {tokens} tokens once", remedy))
    return own


class Slots:
    """Where tokens are: position[rank, slot]. A slot that holds no token has a position behind the last one."""

    def __init__(self, job: Job, tokens: int, one_query: bool = False):
        self.one_query = one_query  #: all ranks have the query of the last token
        shards = [job.shard(rank, tokens) for rank in range(job.ring)]
        self.job, self.tokens, self.ranks, self.count = job, tokens, job.ring, max(map(len, shards))
        behind = iter(range(tokens, tokens + self.ranks * self.count))
        self.position = np.array([shard + [next(behind) for _ in range(self.count - len(shard))] for shard in shards])

    def placed(self, placement: str) -> np.ndarray:
        """The positions under another placement."""
        return np.array([self.job.shard(rank, self.ranks * self.count, placement) for rank in range(self.ranks)])

    @functools.cached_property
    def placed_over_world(self) -> np.ndarray:
        """For each position the one that the mask takes it to be, when tokens are placed over all ranks of a hybrid."""
        job, everything = self.job, self.ranks * self.count
        taken = np.arange(everything)
        if job.ulysses > 1 and everything % (2 * job.ranks) == 0 and not job.own:
            for rank in range(job.ranks):
                taken[Job(job.ranks, job.placement).shard(rank, everything)] = job.tokens_of(rank, everything)
        return taken

    @functools.cached_property
    def with_swapped_axes(self) -> np.ndarray:
        """The positions if the axes of Ulysses and of the ring were exchanged."""
        job, other, everything = self.job, self.job.ring, self.ranks * self.count
        if job.ulysses in (1, other) or everything % (2 * job.ranks) or job.own:
            return self.position
        swapped = Job(job.ranks, job.placement, other)
        tokens = np.array([swapped.tokens_of(rank, everything) for rank in range(job.ranks)])
        rank, slot, part = np.arange(self.ranks)[:, None], np.arange(self.count), self.count // job.ulysses
        return tokens[slot // part + job.ulysses * rank, slot % part]

    def of_ranks(self) -> Iterator[tuple[int, int]]:
        """The ranks, and how many tokens each has: they come before its empty slots."""
        return enumerate((self.position < self.tokens).sum(1).tolist())

    def shards(self, array: np.ndarray, position: np.ndarray | None = None) -> np.ndarray:
        """[R, heads, N, dim] of [heads, tokens, dim]; a slot without a token is zero."""
        behind = np.zeros((len(array), self.position.size - self.tokens, array.shape[2]))
        rows = self.position if position is None else position
        return np.concatenate([array, behind], axis=1)[:, rows].swapaxes(0, 1)

    def joined(self, shards: np.ndarray) -> np.ndarray:
        """[..., heads, tokens, dim] of [..., R, heads, N, dim]."""
        *more, ranks, heads, count, dim = shards.shape
        rows = shards.swapaxes(-4, -3).reshape(*more, heads, ranks * count, dim)
        return rows[..., np.argsort(self.position.ravel())[: self.tokens], :]
