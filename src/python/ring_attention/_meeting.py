"""How ranks begin a call together, and how long a rank waits for the others."""

from __future__ import annotations

import os
import time

from . import _core


def limit():
    """How many seconds a rank waits for the others."""
    text = os.environ.get("RING_ATTENTION_TIMEOUT", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < 1e9:
        raise ValueError(f"RING_ATTENTION_TIMEOUT is {text!r}: it must be a number of seconds above 0")
    return seconds


class Meeting:
    """Ranks that begin a call together: each tells rank 0 its call, and rank 0 tells each its verdict.

    They have rank, size, is_apart and set_apart(); send_text(to, text), and receive_text(source, seconds), which returns None
    when no text of `source` has come; withdraw(), after which is_withdrawn() is true on rank 0.
    """

    def open(self, call, timeout):
        """Is called before the first text of a call."""

    def begun(self):
        """Is called when all ranks have begun a call."""

    def begin(self, call, problem, news, timeout):
        """Returns what rank 0 announces, when all ranks make the same call and none has a problem. Collective.

        call     one line
        problem  of this rank alone; empty: none
        news     what rank 0 announces

        Raises AgreedError, the same on all ranks, with the problem of the lowest rank that has one, or else with the lowest rank
        that makes another call than rank 0. Raises TimeoutError when the other ranks have not come `timeout` seconds after
        rank 0, or rank 0 not `timeout` after this rank: it names who is missing, and a rank that comes later raises it, too.
        (Rank 0 that comes in the moment in which another rank gives up may find itself in the call alone, where a wait inside
        it ends.)
        """
        if self.is_apart:
            raise _core.Error(f"{call}: an earlier call failed on this rank, and the other ranks may still be in it. No "
                              "further call of all ranks is possible")
        try:
            self.open(call, timeout)
            verdict = (self._decide if self.rank == 0 else self._ask)(call, problem, news, timeout)
            kind, text = verdict[0], verdict[1:]
            if kind == "g":
                self.begun()
            if kind == "l":
                raise TimeoutError(text)
        except BaseException:
            self.set_apart()
            raise
        if kind == "r":
            raise _core.AgreedError(text)
        return text

    def _decide(self, call, problem, news, timeout):
        if self.size == 1:
            return f"rrank 0: {problem}" if problem else "g" + news
        texts, begin = [f"{call}\n{problem}"] + [None] * (self.size - 1), time.monotonic()
        self._collect(texts, begin + min(timeout / 4, 0.05))
        if None in texts and not self.is_withdrawn():
            self._tell("h")  # rank 0 is here: the others wait for its verdict
            self._collect(texts, begin + timeout)
        if self.is_withdrawn():
            verdict = _late(call, [0], timeout)
        elif None in texts:
            verdict = _late(call, [rank for rank, text in enumerate(texts) if text is None], timeout)
        else:
            verdict = _verdict_on([text.split("\n", 1) for text in texts], news)
        self._tell(verdict)
        return verdict

    def _collect(self, texts, end):
        for other, text in enumerate(texts):
            if text is None:
                texts[other] = self.receive_text(other, max(0.0, end - time.monotonic()))

    def _tell(self, text):
        for other in range(1, self.size):
            self.send_text(other, text)

    def _ask(self, call, problem, news, timeout):
        self.send_text(0, f"{call}\n{problem}")
        answer = self.receive_text(0, timeout)
        if answer == "h":
            answer = self.receive_text(0, timeout + 1)  # rank 0 gives up before this rank does
        if answer is None:
            self.withdraw()
        return answer or _late(call, [0], timeout)


def _verdict_on(arrivals, news):
    """What rank 0 says of the (call, problem) of each rank: g (go) with its news, or r (refused) with an error."""
    due = arrivals[0][0]
    for rank, (_, problem) in enumerate(arrivals):
        if problem:
            return f"rrank {rank}: {problem}"
    for rank, (call, _) in enumerate(arrivals):
        if call != due:
            return f"rthe ranks disagree on the call: rank 0 has {due}, rank {rank} has {call}"
    return "g" + news


def _late(call, missing, timeout):
    return (f"l{call}: waited {timeout:g} s for rank {', '.join(map(str, missing))}, which did not make this call. All "
            "ranks make the same calls; a rank that needs longer needs a longer RING_ATTENTION_TIMEOUT")
