"""What each rank of a job of ranks_test.py runs: `ranks_program.py CASE...`, each case a function of this file with its
arguments, such as `failing:kernel`. Prints lines; a failed check ends the job.
"""

import itertools
import os
import signal
import sys
import time

import cases
import numpy as np
import reference
import ring_attention as ra
from cases import check, refused
from group_cases import traces  # noqa: F401: a case
from reference import largest_difference, random_case

WAYS = [{"placement": placement, "parallel": parallel}
        for placement, parallel in itertools.product(("contiguous", "striped", "zigzag"), ("ring", "all-gather"))]


def held(array, seq, way, axis=2):
    place = {word: way[word] for word in ("placement", "parallel", "ulysses") if word in way}
    return array.take(ra.positions(seq, **place), axis)


def dense(arrays, words):
    """The results, a gradient of lse, and the gradients."""
    q, k, v, grad_out = arrays
    want = reference.attention(q, k, v, **words)
    grad_lse = np.where(np.isneginf(want[1]), 0, np.cos(np.arange(want[1].size)).reshape(want[1].shape))
    return want, grad_lse, reference.gradients(grad_out, q, k, v, grad_lse=grad_lse, **words)


def run_case(arrays, words, way, bound=1e-12, due=None, **more):
    """Forward and backward of this rank against the rows of dense attention; `due`: what `dense` returned."""
    q, k, v, grad_out = arrays
    queries, keys = q.shape[2], k.shape[2]
    want, grad_lse, gradients = due or dense(arrays, words)
    own = dict(words)
    if "bias" in words:
        own["bias"] = held(words["bias"], queries, way)
    mine = [held(array, array.shape[2], way) for array in (q, k, v)]
    seq = queries if queries == keys else (queries, keys)
    got = ra.ring_attention(*mine, seq=seq, **way, **own, **more)
    check(largest_difference(got.out, held(want[0], queries, way)) <= bound, "out", way, words)
    check(largest_difference(got.lse, held(want[1], queries, way)) <= bound, "lse", way, words)
    if "kernel" in more:
        return
    back = ra.ring_attention_backward(held(grad_out, queries, way), *mine, *got, seq=seq, grad_lse=held(grad_lse, queries, way),
                                      **way, **own, **more)
    if back.sink is not None:
        back = back._replace(sink=ra.all_reduce(back.sink))
    for name, one, want in zip(back._fields, back, gradients):
        if want is None:
            check(one is None, name, way, words)
            continue
        is_sum = want.ndim < 2  # over the rows of all ranks
        due = want if is_sum else held(want, keys if name in "kv" else queries, way)
        limit = bound * (100 if is_sum else max(1, np.abs(due).max(initial=0)))
        check(largest_difference(one, due) <= limit, name, way, words)


def values():
    """Uneven and empty shards in every placement; Ulysses and hybrids where they divide the heads."""
    for number in range(24):
        length = [None, 1, 2, ra.size() + 1][number % 4]
        *arrays, words = random_case(1000 + number, queries=length, keys=length)
        run_case(arrays, words, WAYS[number % len(WAYS)], threads=1 + number % 2)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((1, 30, 23, 8)) for _ in range(4)]
    for parallel, ulysses in (("ulysses", 1), ("hybrid", 1), ("hybrid", ra.size())):
        run_case(arrays, {"causal": True}, {"placement": "zigzag", "parallel": parallel, "ulysses": ulysses})
        run_case([*arrays[:2], arrays[2][..., :3], arrays[3][..., :3]], {}, {"parallel": parallel, "ulysses": ulysses})


def balanced():
    """A placement for one mask: dense results in every partition, scatter and gather, and an error where it does not fit."""
    rng = np.random.default_rng(8)
    seq = 700
    arrays = [rng.standard_normal((1, heads, seq, 8)) for heads in (4, 2, 2, 4)]
    for words in ({"causal": True, "documents": [0, 100, 450, 640, seq]}, {"window": (90, 20)}):
        due = dense(arrays, words)
        for parallel, ulysses in (("ring", 1), ("all-gather", 1), *[("hybrid", ra.size())] * (4 % ra.size() == 0)):
            place = ra.balanced(seq, ulysses=ulysses, **words)
            check((place.seq, place.ranks) == (seq, ra.size() // ulysses), place)
            run_case(arrays, words, {"placement": place, "parallel": parallel, "ulysses": ulysses}, due=due, threads=1)
        place = ra.balanced(seq, **words)
        held_by = [ra.positions(seq, placement=place, rank=rank) for rank in range(ra.size())]
        check(np.array_equal(np.sort(np.concatenate(held_by)), np.arange(seq)), "each token is on one rank")
        check(max(map(len, held_by)) - min(map(len, held_by)) <= 64, "equal tokens within a chunk")
        spans = [np.arange(begin, end) for begin, end in place.ranges(ra.rank())]
        check(np.array_equal(np.concatenate(spans or [np.arange(0)]), held_by[ra.rank()]), "ranges")
        part = ra.scatter(arrays[0] if ra.rank() == 0 else None, placement=place)
        check(np.array_equal(part, arrays[0].take(held_by[ra.rank()], 2)), "scatter")
        whole = ra.gather(part, seq=seq, placement=place)
        check(ra.rank() != 0 or np.array_equal(whole, arrays[0]), "gather")
    q, k, v = (array.astype(np.float32) for array in arrays[:3])
    words = {"causal": True, "documents": [0, 100, 450, 640, seq], "same_bits": 16}
    place = ra.balanced(seq, **words)
    own = ra.positions(seq, placement=place)
    got = ra.ring_attention(*(array.take(own, 2) for array in (q, k, v)), seq=seq, placement=place, **words)
    check(got.out.tobytes() == ra.attention(q, k, v, **words).out.take(own, 2).tobytes(), "the same bits")
    if ra.size() == 1:
        return
    last = ra.rank() == ra.size() - 1
    order = [[] for _ in range(ra.size())]
    order[0], order[1] = ([(0, 300), (300, 350)], [(350, 700)]) if last else ([(0, 350)], [(350, 700)])
    same = ra._core.Placement(order)  # other ranges, the same tokens
    own = ra.positions(seq, placement=same)
    one = ra.ring_attention(*(array.take(own, 2) for array in arrays[:3]), seq=seq, placement=same)
    check(one.out.shape[2] == len(own), "ranges that continue are one")
    for problem, here in (
        ("ranges of hash", ra._core.Placement([[(0, 700)], *[[]] * (ra.size() - 1)] if last else order)),
        ("placement is over 1 rank and of 700 tokens where", ra.balanced(seq, 1)),
        ("of 699 tokens where", ra.balanced(699)),
        ("give the value of balanced()", "balanced"),
    ):
        length = len(ra.positions(seq, placement=here)) if "hash" in problem else 5
        spoilt = [np.ones((1, 1, length, 4))] * 3
        refused(ra.AgreedError, problem, lambda: ra.ring_attention(*spoilt, seq=seq, placement=here))  # noqa: B023


def kernels():
    """The kernel of a user in the ring."""
    calls = []

    def kernel(q, k, v, mask, scale):
        calls.append(mask is None)
        group = q.shape[1] // k.shape[1]
        s = scale * q @ k.repeat(group, 1).swapaxes(2, 3)
        s = s if mask is None else np.where(mask, s, -np.inf)
        m = s.max(axis=3, keepdims=True)
        with np.errstate(invalid="ignore"):
            p = np.exp(s - m)  # NaN where a query sees no key
        l = p.sum(axis=3, keepdims=True)
        return p @ v.repeat(group, 1) / l, m + np.log(l)

    for number in range(12):
        *arrays, words = random_case(2000 + number)
        words = {word: words[word] for word in words if word not in reference.OF_PAIRS}
        run_case(arrays, words, WAYS[number % len(WAYS)], kernel=kernel)
    check(not all(calls) and any(calls), "each kind of mask")
    if ra.size() == 1:  # no other rank is left inside the call
        good = np.ones((3, 4))
        refused(ZeroDivisionError, "", lambda: ra.ring_attention(good, good, good, seq=3, kernel=lambda *_: 1 / 0))
        check(ra.ring_attention(good, good, good, seq=3).out.shape == (3, 4), "the next call")


def program(folder, placement, parallel):
    """The arrays of the folder: writes what this rank computes of them, as an array of rank 0."""
    arrays = [np.load(f"{folder}/{name}.npy") if ra.rank() == 0 else None for name in ("q", "k", "v", "dout")]
    place = {"placement": placement, "parallel": parallel}
    q, k, v, grad_out = (ra.scatter(array, **place) for array in arrays)
    seq = int(np.load(f"{folder}/q.npy", mmap_mode="r").shape[-2])
    words = {"seq": seq, "causal": True, "dropout": 0.25, "seed": 7, **place}
    result = ra.ring_attention(q, k, v, **words)
    gradients = ra.ring_attention_backward(grad_out, q, k, v, *result, **words)
    for name, array in zip(("out", "lse", "dq", "dk", "dv"), (*result, *gradients)):
        whole = ra.gather(array, seq=seq, axis=-1 if name == "lse" else -2, **place)
        check((whole is None) == (ra.rank() != 0), "gather")
        if ra.rank() == 0:
            np.save(f"{folder}/{parallel}_{name}.npy", whole)


def errors():
    """Each is one AgreedError on all ranks, and the next call works."""
    last = ra.size() - 1
    seq = 10
    good = np.ones((2, len(ra.positions(seq)), 4))
    on_last = ra.rank() == last

    def agreed(text, call):
        refused(ra.AgreedError, text, call)
        check(ra.ring_attention(good, good, good, seq=seq).out.shape == good.shape, "the next call")

    def one_spoilt(text, q=good, **words):
        agreed(text, lambda: ra.ring_attention(q if on_last else good, good, good, **{"seq": seq, **words}))

    who = f"rank {last}: "
    one_spoilt(who + "q is [1, 2, ", np.ones((2, good.shape[1] + 1, 4)))
    one_spoilt(who + "q is int64: it must be", np.ones(good.shape, int))
    one_spoilt(who + "q has 1 dimensions", np.ones(3))
    one_spoilt(who + "k is float64 where q is not", good.astype(np.float32))
    one_spoilt(who + "dropout is 2", dropout=2 if on_last else 0)
    one_spoilt(who + "placement is 'diagonal': it must be contiguous, striped or zigzag",
               placement="diagonal" if on_last else "zigzag")
    one_spoilt(who + "seq is -1", seq=-1 if on_last else seq)
    one_spoilt("documents are boundaries", documents=[0, 3])
    one_spoilt("kernel: it gets a mask only", kernel=max, alibi=True)
    wrong = good.copy()
    wrong[1, 0, 2] = np.nan
    one_spoilt(who + "q has 1 elements that are NaN or infinite, the first at [0, 1, 0, 2]", wrong, check=True)
    os.environ["RING_ATTENTION_TIMEOUT"] = "soon" if on_last else "50"
    refused(ra.AgreedError, who + "RING_ATTENTION_TIMEOUT is 'soon': it must be a number of seconds",
            lambda: ra.ring_attention(good, good, good, seq=seq))
    del os.environ["RING_ATTENTION_TIMEOUT"]
    refused(TypeError, "comm is int: it must be a communicator of an mpi4py",
            lambda: ra.ring_attention(good, good, good, seq=seq, comm=3))
    agreed("shard is float64 [2, ", lambda: ra.gather(good[:, :0] if on_last else good, seq=seq))
    agreed("array is object with 0 dimensions", lambda: ra.scatter(None))
    check(ra.positions(600, same_bits=True, rank=0).size % 256 in (0, 600 % 256), "tiles of 256")
    if last > 0:
        one_spoilt(f"rank 0 has causal=True, or window=(..., 0), rank {last} has causal=False", causal=not on_last)
        agreed("the ranks disagree on the call: rank 0 has ring_attention, rank 1 has gather", lambda: (
            ra.ring_attention(good, good, good, seq=seq) if ra.rank() == 0 else ra.gather(good, seq=seq)))


def memory():
    """500 calls, half of them backward."""
    good = np.ones((2, 100, 16))
    sizes = []
    for count in range(250):
        result = ra.ring_attention(good, good, good, seq=100 * ra.size(), threads=1)
        ra.ring_attention_backward(good, good, good, good, *result, seq=100 * ra.size(), threads=1)
        if count in (100, 249):
            with open("/proc/self/statm", encoding="ascii") as file:
                sizes.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    check(sizes[1] - sizes[0] < 2 << 20, "grew by", sizes[1] - sizes[0])


def no_memory():
    """The last rank has no memory for its results: all ranks have the same error, and the next call works."""
    import resource

    last, tokens = ra.rank() == ra.size() - 1, 400
    q, k = np.ones((256, tokens, 128)), np.ones((1, tokens, 128))
    words = {"seq": tokens * ra.size(), "window": (0, 0), "threads": 1}
    result = ra.ring_attention(q, k, k, **words)
    before = resource.getrlimit(resource.RLIMIT_AS)
    for call in (lambda: ra.ring_attention(q, k, k, **words),
                 lambda: ra.ring_attention_backward(q, q, k, k, *result, **words)):
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        if last:
            resource.setrlimit(resource.RLIMIT_AS, (now + q.nbytes // 2, before[1]))
        refused(ra.AgreedError, f"rank {ra.size() - 1} is out of memory", call)
        resource.setrlimit(resource.RLIMIT_AS, before)
    check(ra.ring_attention(q, k, k, **words).out.shape == q.shape, "the next call")


def failing(kind):
    """The last rank fails alone; the others wait for it."""
    good = np.ones((2, 5, 4))

    def kernel(*_):
        raise RuntimeError("this kernel is broken")

    if kind == "alone" and ra.rank() == ra.size() - 1:
        raise RuntimeError("this rank is broken")
    last = ra.rank() == ra.size() - 1
    if kind == "agreed":
        ra.ring_attention(good[..., :3] if last else good, good, good, seq=5 * ra.size())
    ra.ring_attention(good, good, good, seq=5 * ra.size(), kernel=kernel if last else zeros)


def missing(kind):
    """A rank does not come, or leaves a call: the others wait RING_ATTENTION_TIMEOUT seconds."""
    timeout = float(os.environ["RING_ATTENTION_TIMEOUT"])
    ranks = [os.environ[word] for word in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK") if word in os.environ]
    if kind == "unstarted" and "0" not in ranks:
        sys.exit(0)
    good = np.ones((2, 5, 4))
    last = ra.rank() == ra.size() - 1

    def call(**words):
        return ra.ring_attention(good, good, good, seq=5 * ra.size(), **words)

    def slow(*arguments):
        time.sleep(1.3 * timeout)
        return zeros(*arguments)

    def failing_or_stopped(*arguments):
        if last and kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if last:
            raise RuntimeError("this kernel is broken")
        return zeros(*arguments)

    call()
    if kind == "slow":  # each rank calls it once, at the same time
        call(kernel=slow, placement="contiguous", window=(0, 0))
    elif kind == "first":
        if ra.rank() != 0:
            call()
        time.sleep(20)
    elif kind == "last":
        if not last:
            call()  # the last rank ends without it
    elif kind in ("late", "late_first"):
        late = last if kind == "late" else ra.rank() == 0
        time.sleep(1.5 * timeout if late else 0)
        try:
            call()
        except TimeoutError as error:
            print(error, flush=True)
        refused(ra.Error, "No further call of all ranks is possible", call)
        print("no further call", flush=True)
        time.sleep(0 if late else timeout)
    else:
        try:
            call(kernel=failing_or_stopped)
        except RuntimeError:
            time.sleep(20)


def zeros(q, k, v, mask, scale):
    """A kernel."""
    return np.zeros_like(q), np.zeros(q.shape[:3])


def waiting():
    """Rank 0 sleeps in Python; the others wait for it in the ring. An interrupt comes."""
    good = np.ones((2, 5, 4))
    ra.ring_attention(good, good, good, seq=5 * ra.size())
    if ra.rank() == 0:
        print("waiting", flush=True)
        time.sleep(60)
    ra.ring_attention(good, good, good, seq=5 * ra.size())


def computing():
    """All ranks compute for a long time. An interrupt comes."""
    long = np.ones((1, 150000, 64), np.float32)
    ra.size()
    if ra.rank() == 0:
        print("waiting", flush=True)
    ra.ring_attention(long, long, long, seq=150000 * ra.size(), threads=1)


if __name__ == "__main__":
    cases.run(globals(), sys.argv[1:])
