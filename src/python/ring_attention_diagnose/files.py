"""The files of `diagnose`: cases and their arrays; what a user's code wrote next to them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import warnings
from pathlib import Path
from typing import Iterator

import numpy as np

from .layout import Given, shape_text
from .placement import MOST_RANKS, PLACEMENTS, InputError, Job, job_of, refuse
from .problem import ARRAYS, MORE, MOST_RUNS, Case, Problem, every_case, problem_of, runs_of

MOST_SEED = 2**63 - 1
_SIZES = {field.name: field.default for field in dataclasses.fields(Job) if field.name in ("tokens", "heads", "dim", "block")}
_INPUTS = ("q", "k", "v", "dout", "bias", "sinks")
_AS_FLOAT = "save it with array.astype('float32'), or 'float64'"
_SAVE_AGAIN = "save the array again with np.save"
_MAKE_CASES = "`ring-attention diagnose cases --out DIR` makes a directory of cases; `diagnose DIR` reads it"
_WRITE_AGAIN = "write the cases again"


@contextlib.contextmanager
def _one_line(path: str, problem: str, remedy: str) -> Iterator[None]:
    """Errors of the system, as an InputError."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(path, f"{problem}: {reason}", remedy) from error


def _exists(path: str) -> bool:
    """:raises InputError: when that cannot be said, as of a link to itself; for a pipe, which may never end"""
    with _one_line(path, "cannot be read", "check what is in its place"):
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # to open a directory is an error of its own
        raise InputError(path, "is not a plain file", "check what is in its place")
    return True


def _header(file, path: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Extents, Fortran order, type."""
    start = file.read(6)
    if start[:4] == b"PK\x03\x04":
        raise InputError(path, "this is an .npz archive, not a .npy file", "save one array per file with np.save")
    if start != b"\x93NUMPY":
        raise InputError(path, "not a .npy file", "save the array with np.save")
    file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that Python 2 wrote
            extents, fortran, dtype = read(file)
    except Exception as error:  # of a parser of Python's syntax: there are many kinds
        raise InputError(path, f"the header is damaged: {' '.join(str(error).split())[:80]}", _SAVE_AGAIN) from error
    refuse(
        path,
        (dtype.hasobject or dtype.names, "an array of Python objects, or of fields, is not supported", _AS_FLOAT),
        (dtype.kind in "iub", f"the elements are integers ('{dtype.str}')", _AS_FLOAT),
        (dtype.kind != "f" or dtype.itemsize > 8, f"the dtype '{dtype.str}' is not supported", _AS_FLOAT),
        (any(extent < 0 for extent in extents), f"the shape {shape_text(extents)} has a negative extent", _SAVE_AGAIN),
    )
    return extents, fortran, dtype


def read_array(path: str, most: int | None = None, shape: tuple[int, ...] | None = None) -> np.ndarray | None:
    """float64. A file with more than `most` elements is refused by its header; None for another shape than `shape`."""
    with _one_line(path, "cannot be read", "check the file"), open(path, "rb") as file:
        extents, fortran, dtype = _header(file, path)
        if shape is not None and extents != shape:
            return None
        elements = int(np.prod([int(extent) for extent in extents], dtype=object))
        wanted, left = elements * dtype.itemsize, os.fstat(file.fileno()).st_size - file.tell()
        refuse(
            path,
            (most is not None and elements > most, f"the shape {shape_text(extents)} has more than the elements of the case",
             "reshape the array before it is handed back"),
            (left < wanted, f"truncated: {wanted - left} of its bytes are missing", _SAVE_AGAIN),
            (left > wanted, f"{left - wanted} bytes follow the array", "a file holds one array: save it again with np.save"),
        )
        return np.frombuffer(file.read(), dtype).astype(np.float64).reshape(extents, order="F" if fortran else "C")


def _results_in(folder: str, problem: Problem) -> Given:
    """The files with results of a case."""
    most = max(2 * problem.q.size, problem.case.heads * problem.case.tokens**2)  # rows behind the last are cut off
    return {array: _pieces(folder, array, problem.job.ranks, most) for array in ARRAYS + MORE}


def _pieces(folder: str, array: str, ranks: int, most: int | None = None) -> list[tuple[str, np.ndarray]]:
    """The file of an array, or those of all ranks; none if there is none."""
    files = [f"{folder}/{array}.npy"]
    if not _exists(files[0]):
        files = [f"{folder}/{array}.{rank}.npy" for rank in range(ranks)]
    there = [file for file in files if _exists(file)]
    pieces = [(file, read_array(file, most)) for file in there]
    if there and there != files:
        missing = [file for file in files if file not in there][-1]
        raise InputError(missing, "is missing; other ranks wrote theirs", "every rank has to write its rows")
    return pieces


def _with_own_arrays(case: Case, job: Job, folder: str) -> Problem:
    """The case with the arrays of its folder, which a program of the lessons wrote, in place of its own."""
    pieces = {name: [array[0] for _, array in _pieces(folder, name, job.ranks)] for name in _INPUTS}
    tokens = sum(piece.shape[1] for piece in pieces["q"])
    shards = [job.tokens_of(rank, tokens) for rank in range(len(pieces["q"]))]
    place = np.argsort(sum(shards, [])) if len(shards) > 1 else np.arange(tokens)
    whole = {name: np.concatenate(some, axis=1)[:, place] for name, some in pieces.items() if some and name != "sinks"}
    case = dataclasses.replace(case, tokens=tokens, heads=len(whole["q"]), kv_heads=len(whole["k"]),
                               dim=whole["q"].shape[2], value_dim=whole["v"].shape[2],
                               documents=case.documents and (*case.documents[:-1], tokens))
    problem = Problem(case, job, 1)
    if case.bias:
        whole["bias"] = np.broadcast_to(whole["bias"], problem.bias.shape)
    if case.sinks:
        whole["sinks"] = pieces["sinks"][0].ravel()
    return problem.given(whole)


def _other_input(problem: Problem, folder: str) -> str:
    """The file of an input that is not the array of the problem; empty if all are, or there is none."""
    for name, array in problem.inputs().items():
        path = f"{folder}/{name}.npy"
        if _exists(path) and not np.array_equal(read_array(path, shape=array.shape), array):
            return path
    return ""


def _integer_of(json_object: dict, field: str, least: int, most: int) -> int:
    value = json_object[field]
    if type(value) is not int or not least <= value <= most:
        types = {bool: "boolean", str: "string", type(None): "null", list: "array", dict: "object"}
        shown = types.get(type(value)) or repr(value)
        raise InputError(f"{field} is {shown}", f"it must be a whole number from {least} to {most}")
    return value


def _problems_in(json_object: dict, directory: str) -> list[Problem]:
    """The problems of cases.json, made again, or with the arrays that are in the directory."""
    ranks = _integer_of(json_object, "ranks", 1, MOST_RANKS)
    ulysses = _integer_of(json_object, "ulysses", 1, ranks)
    if ranks % ulysses:
        raise InputError(f"ulysses is {ulysses}, which does not divide the {ranks} ranks")
    placement = json_object["placement"]
    if isinstance(placement, str) and placement not in (*PLACEMENTS, "own"):
        raise InputError("placement is none that there is")
    words = {**_SIZES, **json_object}
    sizes = {name: _integer_of(words, name, 0, 1 << 16) for name in _SIZES}
    job = job_of(ranks, {word: word for word in (*PLACEMENTS, "own")}[placement], "hybrid", ulysses, **sizes)
    seed = _integer_of(json_object, "seed", 0, MOST_SEED)
    repeat = _integer_of({"repeat": 1, **json_object}, "repeat", 1, MOST_RUNS)
    cases = {one.folder: one for case in every_case(job) for one in runs_of(case, repeat)}
    names = [entry["name"] for entry in json_object["cases"]]
    if any(isinstance(name, str) and name not in cases for name in names):
        raise InputError("a case is unknown")
    if len(names) > len(set(names)):
        raise InputError("a case stands twice")
    if json_object.get("own_arrays") is True:
        return [_with_own_arrays(cases[name], job, f"{directory}/{name}") for name in names]
    if placement != "own":
        return [Problem(cases[name], job, seed) for name in names]
    layouts = {entry["name"]: entry["tokens_of_rank"] for entry in json_object["cases"]}
    return [problem_of(cases[name], job, seed, lambda case: layouts[cases[name].folder]) for name in names]


def _json(path: str, to_have_it: str, remedy: str):
    with _one_line(path, "cannot be read", to_have_it):
        text = Path(path).read_bytes()
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(path, "is no JSON", remedy) from error


def _read_problems(path: str) -> list[Problem]:
    _exists(path)
    words = _json(path, _MAKE_CASES, _WRITE_AGAIN)
    try:
        return _problems_in(words, os.path.dirname(path))
    except InputError as error:
        raise InputError(path, str(error), _WRITE_AGAIN) from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(path, "is not a file of `diagnose cases`", _WRITE_AGAIN) from error


def read_layouts(path: str) -> dict[str, list]:
    """The tokens of each rank, by case."""
    layouts = _json(path, "give a JSON file", "give an object: a name of a case, and the list of each rank's positions")
    refuse(path, (not isinstance(layouts, dict) or not layouts, "is no object with a case",
                  'give {"causal": [[0, 3], [1, 2]]}: a name of a case, and the list of each rank\'s positions'))
    return layouts


def write_cases(problems: list[Problem], parallel: str, out: str) -> None:
    """Writes OUT/cases.json, and for each case OUT/NAME with q.npy, k.npy, v.npy, dout.npy and, of some cases,
    bias.npy.

    :raises InputError: when a file cannot be written, or OUT has results for other arrays
    """
    for problem in problems:
        folder = f"{out}/{problem.case.folder}"
        if _other_input(problem, folder) and any(_results_in(folder, problem).values()):
            raise InputError(folder, "has results for other arrays", "remove them, or give another --out")
    job, text = problems[0].job, (Path(__file__).parent / "explanations.txt").read_text(encoding="utf-8")
    words = {"ranks": job.ranks, "placement": job.placement, "parallel": parallel, "ulysses": job.ulysses,
             "seed": problems[0].seed, "repeat": max(one.case.run for one in problems),
             **{name: getattr(job, name) for name in _SIZES if getattr(job, name) != _SIZES[name]},
             "hand_back": ARRAYS, "explanations": text.splitlines(),
             "cases": [problem.description() for problem in problems]}
    for folder in (out, *(f"{out}/{problem.case.folder}" for problem in problems)):
        with _one_line(f"--out {folder}", "cannot be made a directory", "give another, or check what is in the way"):
            os.makedirs(folder, exist_ok=True)
    files = {f"{out}/{problem.case.folder}/{name}.npy": array
             for problem in problems for name, array in problem.inputs().items()}
    for path in (*files, f"{out}/cases.json"):
        _exists(path)  # a pipe there would wait for a reader
        with _one_line(path, "cannot be written", "check the directory, and the space on the disk"):
            if path in files:
                np.save(path, files[path].astype(np.float32))
            else:
                Path(path).write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")


def read_results(directory: str) -> tuple[list[Problem], list[Given]]:
    """:raises InputError: one line: for a directory without cases, arrays that are not those of cases.json, results of
    no case, or of some ranks only"""
    problems, given = _read_problems(f"{directory}/cases.json"), []
    for problem in problems:
        folder = f"{directory}/{problem.case.folder}"
        given.append(_results_in(folder, problem))
        path = _other_input(problem, folder) if any(given[-1].values()) else ""
        if path:
            raise InputError(path, "is not the array of this case",
                             "write the cases again; was it made with another --seed?")
    if not any(any(of_case.values()) for of_case in given):
        names = ", ".join(f"{array}.npy" for array in ARRAYS[:-1]) + f" or {ARRAYS[-1]}.npy"
        raise InputError(directory, f"no case has {names} (or out.0.npy, out.1.npy, ...)",
                         "let your code write its results into the folders of the cases")
    return problems, given
