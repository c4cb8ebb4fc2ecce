"""`judge_model`: which layers of a model on several ranks are wrong, from what `record` has written."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .diagnosis import Diagnosis, diagnose
from .examination import Options
from .layout import Submission
from .losses import losses
from .placement import MOST_PAIRS, PLACEMENTS, InputError, Job, job_of, own_layout, refuse
from .problem import ARRAYS, Case, Problem
from .report import to_dict, to_text
from .residual import precision_of
from .rounding import PRECISION_OF, coarser
from .search import Evidence

#: Of hidden states, in their size; of half types 0.05. A model in double may compute its softmax in float.
_NEAR = {"float64": 1e-5, "float32": 1e-4}


class ModelVerdict(NamedTuple):
    right: bool
    report: str
    json: dict


class _Run:
    """The file of one rank, or of the run in one process."""

    def __init__(self, path: Path):
        with np.load(path) as file:
            self.arrays = {name: file[name] for name in file.files}
        words = json.loads(str(self.arrays.pop("words")))
        self.positions, self.attention, self.modules = words["positions"], words["attention"], words["modules"]
        self.types, self.loss, self.of_tokens = words["types"], words["loss"], words["of_tokens"]


def _far(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[tokens]: the largest difference of each token, in the size of the array; tokens are the first axis."""
    size = math.sqrt(np.mean(other.astype(float) ** 2)) or 1.0
    far = abs(one.astype(float) - other).reshape(len(one), -1).max(1, initial=0) / size
    return np.where(np.isnan(far), np.inf, far)


class _Model:
    """The run in one process, and those of the ranks."""

    def __init__(self, folder: Path, parallel: str, ulysses: int):
        paths = sorted(folder.glob("[0-9]*.npz"), key=lambda path: int(path.stem))
        if not (folder / "whole.npz").exists() or [path.stem for path in paths] != [str(r) for r in range(len(paths))] or not paths:
            raise InputError(str(folder), "it has not whole.npz and 0.npz, 1.npz and so on of all ranks", "record both runs")
        self.whole, self.ranks = _Run(folder / "whole.npz"), [_Run(path) for path in paths]
        if not self.whole.attention:
            raise InputError(str(folder), "no attention was recorded", "name the modules: record(..., attention={name: words})")
        shards = [run.positions for run in self.ranks]
        self.tokens, self.order = sum(map(len, shards)), np.argsort(sum(shards, []))
        most = max(np.prod(self.whole.arrays[f"{name}:q"].shape[:2]) for name in self.whole.attention) * self.tokens**2
        refuse(str(folder), (most > MOST_PAIRS, f"a layer has {most} pairs of a query and a key, in all its heads",
                             f"record a smaller batch, of at most {MOST_PAIRS}"))
        jobs = [job_of(len(shards), placement, parallel, ulysses) for placement in PLACEMENTS]
        self.job = next((job for job in jobs if shards == [job.tokens_of(r, self.tokens) for r in range(job.ranks)]),
                        Job(len(shards), "own", own=own_layout("the model", self.tokens, len(shards), shards)))
        types = {words["type"] for words in self.whole.attention.values()}
        self.near = max(_NEAR.get(name, 0.05) for name in types)
        self.is_half = self.near > 0.01

    def joined(self, name: str) -> np.ndarray | None:
        """An array [batch, heads, tokens, dim] of all ranks, in the order of positions."""
        parts = [run.arrays.get(name) for run in self.ranks]
        if any(part is None or part.ndim != 4 or part.shape[2] != len(run.positions) for part, run in zip(parts, self.ranks)):
            return None
        return np.concatenate(parts, 2)[:, :, self.order]

    def far(self, name: str) -> np.ndarray | None:
        """[tokens]: how far an array of the ranks is from that of one process. None: it has no tokens, or others."""
        if name not in self.whole.arrays or not all(name in run.arrays for run in self.ranks):
            return None
        found, whole = np.zeros(self.tokens), self.whole.arrays[name]
        for run in self.ranks:
            part, mine = run.arrays[name], len(run.positions)
            axes = [a for a, size in enumerate(whole.shape) if size == self.tokens and part.ndim == whole.ndim
                    and part.shape == (*whole.shape[:a], mine, *whole.shape[a + 1:])]
            if not axes:
                return None
            found[run.positions] = _far(np.moveaxis(part, axes[0], 0), np.moveaxis(whole, axes[0], 0)[run.positions])
        return found

    def is_near(self, name: str) -> bool:
        far = self.far(name)
        return far is None or bool((far <= self.near).all())

    def of_layer(self, name: str, whole: bool) -> tuple[Problem, dict]:
        """The problem of an attention, with the q, k, v that it got, and what it returned."""
        def array(letter: str) -> np.ndarray | None:
            found = self.whole.arrays.get(f"{name}:{letter}") if whole else self.joined(f"{name}:{letter}")
            return None if found is None else found.astype(float)

        words, q = self.whole.attention[name], array("q")
        k, v = array("k"), array("v")
        got = {letter: array(letter) for letter in ("out", "dq", "dk", "dv")}
        if k is None or v is None:  # the ranks have gathered them before
            k, v = (self.whole.arrays[f"{name}:{letter}"].astype(float) for letter in "kv")
            got["dk"] = got["dv"] = None
        if q is None or got["out"] is None:
            raise InputError(name, "its ranks have not recorded its q and out", "does this layer call the attention there?")
        batch, heads, tokens, dim = q.shape
        window = words.get("window") or 0
        case = Case("the batch", name, tokens, heads=batch * heads, kv_heads=batch * k.shape[1], dim=dim, value_dim=v.shape[3],
                    batch=batch, causal=words.get("causal", True), window=window if window < tokens else 0,
                    sinks=f"{name}:sinks" in self.whole.arrays, softcap=words.get("softcap") or 0,
                    ulysses=self.job.ulysses)
        factor = words.get("scale", case.scale) / case.scale  # a Case has the scale of its dim
        dout = array("dout")
        given = {"q": q * factor, "k": k, "v": v, "dout": np.zeros_like(got["out"]) if dout is None else dout}
        given = {letter: x.reshape(-1, *x.shape[2:]) for letter, x in given.items()}
        if case.sinks:
            given["sinks"] = np.tile(self.whole.arrays[f"{name}:sinks"].astype(float).ravel(), batch)
        if got["dq"] is not None:
            got["dq"] = got["dq"] / factor
        return Problem(case, self.job, 1).given(given), {
            letter: x.reshape(-1, *x.shape[2:]) for letter, x in got.items() if x is not None and (letter == "out" or dout is not None)}

    def judged(self, name: str, lists_not_tested: bool) -> Diagnosis | None:
        """None: what it should compute is not known here: packed documents, for example."""
        problem, got = self.of_layer(name, True)
        if not Evidence(problem, got).is_right(("out",), coarser("float32", precision_of(got, ARRAYS))):
            return None
        options = Options(pairs=False, lists_not_tested=lists_not_tested,
                          type_of_q=PRECISION_OF.get(self.whole.attention[name]["type"], ""))
        return diagnose([self.of_layer(name, False)], options)

    def first_change(self) -> tuple[str, np.ndarray] | None:
        """The first module that returns something else for the same tensors, and which tokens have it."""
        for name in self.whole.modules:
            words = {word for word in self.whole.arrays if word.startswith(f"{name}:")}
            got = [word for word in words if word.startswith(f"{name}:got") and not self.is_near(word)]
            if got and all(self.is_near(word) for word in words if word.startswith(f"{name}:given")):
                return name, np.flatnonzero(np.max([self.far(word) for word in got], 0) > self.near)
        return None

    def counts_in_shard(self, name: str) -> bool:
        """Does a module return for the tokens of each rank what it should return for the first ones?"""
        words = [word for word in self.whole.arrays if word.startswith(f"{name}:got") and self.far(word) is not None]

        def is_of_first(run: _Run, word: str) -> bool:
            axis = next(a for a, size in enumerate(self.whole.arrays[word].shape) if size == self.tokens)
            first = np.moveaxis(self.whole.arrays[word], axis, 0)[:len(run.positions)]
            return bool((_far(np.moveaxis(run.arrays[word], axis, 0), first) <= self.near).all())

        return bool(words) and all(is_of_first(run, word) for run in self.ranks for word in words)

    def are_first_of_parts(self, tokens: np.ndarray) -> bool:
        """Are they the first tokens of parts that ranks hold, without the last one?"""
        parts = [part for run in self.ranks for part in np.split(run.positions, np.flatnonzero(np.diff(run.positions) != 1) + 1)]
        return all(np.isin(part, tokens)[-1] == 0 and (np.diff(np.isin(part, tokens) * 1) <= 0).all() for part in parts)

    def gradients(self) -> tuple[bool, str]:
        """Are those of the parameters right?, and a sentence."""
        names = [name for name in self.whole.arrays if name.endswith(":gradient")]
        due = [self.whole.arrays[name].astype(float) for name in names]
        zero = [np.zeros_like(x) for x in due]
        of_ranks = [[run.arrays.get(name, other).astype(float) for name, other in zip(names, zero)] for run in self.ranks]
        if not names or any(a.shape != b.shape for of_rank in of_ranks for a, b in zip(of_rank, due)):
            return True, "not recorded as whole arrays: cannot tell"

        def wrong(got, factor=1) -> list[str]:
            return [name[:-len(":gradient")] for name, x, want in zip(names, got, due) if not np.linalg.norm(
                x - factor * want) <= min(10 * self.near, 0.1) * abs(factor) * max(np.linalg.norm(want), 1e-6 * largest)]

        largest, n = max(map(np.linalg.norm, due)), len(self.ranks)
        sums = [np.sum(x, 0) for x in zip(*of_ranks)]
        for which, factor, says in ((of_ranks, 1, "right"), (of_ranks, n, f"WRONG: {n} times the right ones, the number of ranks"),
                                    (of_ranks, 1 / n, f"WRONG: the right ones divided by {n}, the number of ranks"),
                                    ([sums], 1, "WRONG: each rank has its share, and nothing has added them"),
                                    ([sums], n, f"WRONG: each rank has its share, multiplied by {n}, and nothing has added them")):
            if not any(wrong(got, factor) for got in which):
                return says == "right", says
        differ = wrong(of_ranks[0]) or next(filter(None, map(wrong, of_ranks)))
        return False, f"WRONG: those of {len(differ)} of {len(names)} parameters differ: {', '.join(differ[:3])} ..."


def _known(mistake: str) -> str:
    with open(Path(__file__).parent / "mistakes.tsv", encoding="utf-8", newline="") as file:
        return next(row["says"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row["id"] == mistake)


def _attentions(model: _Model, found: dict) -> str:
    """Judges each layer on the q, k, v and dout that it got: what is wrong before does not count."""
    text, right, kinds = "", [], set()
    for name, words in model.whole.attention.items():
        kind, window = json.dumps(words), words.get("window") or 0
        try:
            one = model.judged(name, kind not in kinds)
        except InputError as error:
            text += f"{name}: WRONG: {str(error).removeprefix(name + ': ')}\n"
            found["layers"][name] = {"right": False, "explained": False}
            continue
        if one is None:
            found["layers"][name] = {"right": None}
            text += f"{name}: compared with one process only, whose attention has more than these words: {words}\n"
            continue
        found["layers"][name] = to_dict(one, Submission())
        if not one.right:
            ids = [" and ".join(reason["mistakes"]) for of_pass in ("forward", "backward")
                   for reason in found["layers"][name][of_pass]["explanations"] if reason["mistakes"]]
            lines = [f"{name}: WRONG [{' or '.join(dict.fromkeys(ids)) or 'unknown'}]", *to_text(one, Submission()).splitlines()]
            text += "\n    ".join(lines) + "\n"
            continue
        right.append(name)
        if kind not in kinds:
            hidden = len(one.not_tested)
            text += f"{name}: right; {hidden} known mistakes would not show in this batch" + (
                f": its window of {window} is not shorter than the {model.tokens} tokens\n" if window >= model.tokens else "\n")
        kinds.add(kind)
    return f"attention: right in {len(right)} of {len(model.whole.attention)} layers\n{text}"


def _hidden_states(model: _Model, found: dict) -> str:
    differ = [name for name in model.whole.attention if not all(model.is_near(f"{name}:{letter}") for letter in "qkv")]
    found["hidden_states_differ_from"] = differ[0] if differ else None
    text = f"hidden states: {f'q, k or v differ from {differ[0]} on' if differ else 'right before every attention'}\n"
    change, culprits = model.first_change(), [name for name, one in found["layers"].items() if one["right"] is False]
    if change and change[0] not in culprits:
        name, tokens = change
        says, mistake = "it returns something else for the same tensors", None
        if model.counts_in_shard(name):
            mistake = "local-rotary"
        elif model.are_first_of_parts(tokens):
            mistake = "tokens-of-shard"
        says = f"{_known(mistake)} [{mistake}]" if mistake else says
        shown = ", ".join(map(str, tokens[:8])) + ", ..." * (len(tokens) > 8)
        found["first_change"] = {"module": name, "mistake": mistake, "tokens": tokens.tolist()}
        text += f"    WRONG: first in {name or 'the model'} ({model.whole.types[name]}), at tokens {shown}: {says}\n"
    elif differ and (change or culprits):
        text += f"    they follow from {(change or culprits)[0]}\n"
    return text + "    in this type 5 % is taken for rounding: record it in float32 as well\n" * model.is_half


def _loss(model: _Model, follows: bool) -> tuple[bool, str]:
    reported = [run.loss for run in model.ranks]
    if None in reported or model.whole.loss is None:
        return True, "loss: not recorded\n"
    tolerance = max(1e-5, model.near / 10)
    close = lambda number: abs(number - model.whole.loss) <= tolerance * abs(model.whole.loss)  # noqa: E731
    if all(map(close, reported)) or close(sum(reported)):
        return True, f"loss: right{'' if close(reported[0]) else ', as the sum over the ranks'}\n"
    if model.whole.of_tokens is None or follows:
        says = "it may follow from what is wrong above" if follows else "the loss of each token is not known"
        return False, f"loss: WRONG: {', '.join(f'{x:.6g}' for x in reported)}, where {model.whole.loss:.6g} is right: {says}\n"
    of_tokens = [math.nan if loss is None else loss for loss in model.whole.of_tokens]
    found = [losses(numbers, of_tokens, [run.positions for run in model.ranks], tolerance) for numbers in (reported, sum(reported))]
    return False, next((one for one in found if one.says), found[0]).report


@np.errstate(all="ignore")
def judge_model(folder: str | Path, parallel: str = "ring", ulysses: int = 1) -> ModelVerdict:
    """Compares the files of `record` of all ranks with that of one process.

    :param parallel, ulysses: of `problems_of`
    :raises InputError: one line
    """
    model, found = _Model(Path(folder), parallel, ulysses), {"layers": {}, "first_change": None}
    text = f"A model on {len(model.ranks)} ranks, {model.job.placement}, {model.tokens} tokens\n"
    text += _attentions(model, found) + _hidden_states(model, found)
    model_is_right = (found["first_change"] is None and not found["hidden_states_differ_from"]
                      and all(one["right"] is not False for one in found["layers"].values()))
    loss_is_right, loss = _loss(model, not model_is_right)
    gradients_are_right, gradients = model.gradients()
    found.update(loss=loss.strip(), gradients=gradients, loss_is_right=loss_is_right, gradients_are_right=gradients_are_right)
    right = model_is_right and loss_is_right and gradients_are_right
    return ModelVerdict(right, f"{text}{loss}gradients: {gradients}\n" + "RIGHT in this batch\n" * right, {"right": right, **found})
