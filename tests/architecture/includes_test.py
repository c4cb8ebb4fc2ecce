"""The rules that docs/architecture.md states: which folder includes which, and which word belongs to which folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))

ENGINES = {"core", "attention", "cpu", "cuda"}
RING = ENGINES | {"mpi", "ring"}
FOLDERS = {  # a folder of the library and what it may include besides itself
    "core": set(),
    "mpi": {"core"},
    "attention": {"core"},
    "cpu": {"core", "attention"},
    "cuda": {"core", "attention"},
    "ring": ENGINES | {"mpi"},
    "parallel": RING,
}
ABOVE = {  # a folder of src above the library and what it may include besides itself and the library
    "io": set(),
    "mistakes": set(),
    "cli": set(),
    "model": set(),
    "live": {"mistakes", "program"},
    "plan": set(),
    "program": {"io", "cli", "model", "plan"},
    "python": {"io", "program"},
}

SOURCE = "src/ring_attention/"
WITHOUT_FLAGS = r"src/(ring_attention|io|plan|model)/"
MPI_FILES = r"src/(ring_attention/mpi|io|live/mpi)/|src/ring_attention/ring/transports/(odd_even|overlapped|mpi_message)\.|" \
            r"src/ring_attention/parallel/collectives/mpi_all_to_all\.|" \
            r"src/ring_attention/(ring_attention|attention_ranks)\.|src/python/|src/cmake/|lessons/|tests/"
# A feature of the library that a caller includes, and the files of parallel and of the door that may know it.
FEATURES = [
    (r"ring_attention/parallel/balance/", r"parallel/balance/"),
    (r"ring_attention/parallel/ulysses/", r"parallel/ulysses/|partitions\."),
    (r"ring_attention/parallel/all_gather/", r"parallel/all_gather/|partitions\."),
    (r"ring_attention/parallel/(observe[dr])\.hpp", r"parallel/(observe[dr]|trace)\.|(observed_call|gpu_attention)\."),
    (r"ring_attention/attention/mask_sets\.hpp", "$^"),  # none
    (r"ring_attention/(parallel/same_bits|cpu/exact/)", r"parallel/(same_bits_|cpu_devices|context_memory|decode/)"),
    (r"ring_attention/(parallel/function_device|attention/function_engine)\.hpp", r"parallel/function_device\."),
    (r"ring_attention/parallel/widening_device\.hpp", r"parallel/cpu_devices\."),
]
# Also the last lines of a job that ends, by mpi_main, and what a trace has removed.
PRINTING_FILES = r"src/program/|src/io/trace_file\.cpp|src/ring_attention/mpi/agreement\.cpp|src/cmake/|lessons/|tests/"

# (what must not stand in code, the files in which it may, why)
WORDS = [
    (r"\bP?MPI_\w", MPI_FILES, "MPI belongs to the folders mpi and io, to the MPI transports, to ring_attention.hpp and to the Python "
     "module"),
    (r"<<<", r".*\.cuh?$", "kernel launches belong to .cu files"),
    (r"\b(f|v|vf)?printf\s*\(|\bf?puts\s*\(|\bstd::(cout|cerr|clog)\b", PRINTING_FILES,
     "printing belongs to the program and to the lessons"),
    (r"%\s*\(?\s*([\w.]*\.)?(\w*ranks?_?|size_?)\b(?!\()",
     r"src/ring_attention/ring/topology\.hpp|lessons/00_attention/ring_attention\.cpp|lessons/emulator/|tests/",
     "arithmetic modulo the number of ranks belongs to ring/topology.hpp"),
    (r"%\s*\(?\s*[\w.]*(comm\w*|ring|world)\w*(\(\))?\.\w+\(", "tests/",
     "arithmetic modulo the number of ranks belongs to ring/topology.hpp"),
    (r"\b\w*rank_?(\(\))?\s*%(?!\s*2\b)", r"src/ring_attention/ring/topology\.hpp|tests/",
     "arithmetic modulo over ranks belongs to ring/topology.hpp"),
    (r"\b\w*rank_?(\(\))?\s*%\s*2\b", r"src/ring_attention/ring/transports/odd_even\.cpp|lessons/|tests/",
     "the parity of a rank belongs to ring/transports/odd_even.cpp"),
    (r"\b(blockIdx|gridDim)\.[yz]\b", "lessons/|tests/",
     "blocks are numbered in x: y and z end at 65535, and there may be more heads"),
]
FLAG = r'"(?:\\.|[^"\\\n])*?--[a-z](?:\\.|[^"\\\n])*"'  # a string that names a flag of the program
FAST_MATH = r"-ffast-math|-Ofast|use_fast_math|unsafe-math|finite-math|float_control|fp:fast"


def code_of(text):
    """Without comments and without what strings say; includes keep their names."""
    comment_or_string = r'//[^\n]*|/\*.*?\*/|(?m:^#include[^\n]*)|"(?:\\.|[^"\\\n])*"'

    def shorten(match):
        word = match[0]
        return word if word.startswith("#") else "\n" * word.count("\n") + ('""' if word.startswith('"') else "")

    return re.sub(comment_or_string, shorten, text, flags=re.DOTALL)


def complaints(name, text):
    """(line, what is wrong) of one file, `name` relative to the repository."""
    if re.search(r"\.(cpp|hpp|cuh?)$", name):
        yield from code_complaints(name, code_of(text))
    if re.match(WITHOUT_FLAGS, name):
        for match in re.finditer(FLAG, re.sub(r"//[^\n]*", "", text)):
            yield text.count("\n", 0, match.start()) + 1, f"{match[0]}: no file of the library names a flag"
    if name.startswith("lessons/"):
        for match in re.finditer(r"/tests\b|\btests/|\"support/", re.sub(r"//.*|(?m:^\s*#(?!include).*)", "", text)):
            yield 1, f"{match[0]}: the lessons do not depend on the tests"
    for match in re.finditer(FAST_MATH, text):
        yield text.count("\n", 0, match.start()) + 1, "fast-math makes NaN and -inf undefined"


def folder_above(path):
    """The folder of ABOVE in which a file stands, named from src; None for the library's and the system's."""
    return next((folder for folder in ABOVE if path.startswith(folder + "/")), None)


def code_complaints(name, code):
    own = folder_above(name.removeprefix("src/")) if name.startswith("src/") else None
    if own or name.startswith(SOURCE):
        for match in re.finditer(r'^#include "([^"]+)"', code, re.MULTILINE):
            if re.match(r"common/|emulator/|\d\d_", match[1]):
                yield code.count("\n", 0, match.start()) + 1, f"{own or 'the library'} must not include a lesson"
            other = folder_above(match[1])
            if other and other != own and other not in ABOVE.get(own, ()):
                yield code.count("\n", 0, match.start()) + 1, f"{own or 'the library'} must not include {other}"
    if name.startswith(SOURCE):
        folder = name[len(SOURCE):].split("/")[0]
        if folder not in FOLDERS and "/" in name[len(SOURCE):]:
            yield 1, f"{folder} is no folder of the library"
        for match in re.finditer(r'^#include ["<]ring_attention/(\w+)/', code, re.MULTILINE):
            if folder in FOLDERS and match[1] != folder and match[1] not in FOLDERS[folder]:
                yield code.count("\n", 0, match.start()) + 1, f"{folder} must not include {match[1]}"
        if folder == "parallel" or "/" not in name[len(SOURCE):]:
            for header, allowed in FEATURES:
                for match in re.finditer(rf'^#include "{header}', code, re.MULTILINE):
                    if not re.match(allowed, name[len(SOURCE):]):
                        yield code.count("\n", 0, match.start()) + 1, "a feature that its caller includes"
    for word, allowed, why in WORDS:
        if not re.match(allowed, name):
            for match in re.finditer(word, code):
                yield code.count("\n", 0, match.start()) + 1, f"`{match[0]}`: {why}"


# Each must be complained about, or this test cannot fail.
MUST_FAIL = [
    ("src/ring_attention/core/a.hpp", '#include "ring_attention/attention/mask.hpp"\n'),
    ("src/ring_attention/attention/a.hpp", '#include "ring_attention/ring/topology.hpp"\n'),
    ("src/ring_attention/cpu/a.cpp", '#include "ring_attention/cuda/stream.hpp"\n'),
    ("src/ring_attention/mpi/a.cpp", '#include "ring_attention/attention/mask.hpp"\n'),
    ("src/ring_attention/ring/a.cpp", '#include "cli/table.hpp"\n'),
    ("src/plan/a.cpp", '#include "cli/table.hpp"\n'),
    ("src/ring_attention/parallel/a.cpp", '#include "model/mesh.hpp"\n'),
    ("src/model/a.cpp", '#include "program/train/job.hpp"\n'),
    ("src/ring_attention/parallel/a.hpp", '#include "ring_attention/parallel/balance/balanced.hpp"\n'),
    ("src/ring_attention/parallel/a.hpp", '#include "ring_attention/parallel/ulysses/heads.hpp"\n'),
    ("src/ring_attention/call.cpp", '#include "ring_attention/parallel/all_gather/all_gather.hpp"\n'),
    ("src/ring_attention/ring_attention.hpp", '#include "ring_attention/parallel/observer.hpp"\n'),
    ("src/ring_attention/call.cpp", '#include "ring_attention/attention/mask_sets.hpp"\n'),
    ("src/model/a.cpp", '#include "io/npy.hpp"\n'),
    ("src/plan/a.cpp", '#include "14_planning/published/paper.hpp"\n'),
    ("src/plan/a.cpp", 'throw InputError("unknown: see --model " + name);\n'),
    ("src/ring_attention/cellar/a.hpp", "\n"),
    ("src/ring_attention/ring/transports/loopback.cpp", "MPI_Barrier(comm);\n"),
    ("src/ring_attention/cuda/a.cpp", "kernel<<<1, 2>>>();\n"),
    ("src/ring_attention/cuda/a.cu", "const int head = blockIdx.y;\n"),
    ("src/ring_attention/ring/a.cpp", 'std::printf("%d", 1);\n'),
    ("src/ring_attention/core/a.cpp", "std::cerr << 1;\n"),
    ("src/ring_attention/ring/placement.cpp", "next = (r + 1) % ranks;\n"),
    ("src/ring_attention/ring/placement.cpp", "next = (r + 1) % ring.size;\n"),
    ("src/program/a.cpp", "next = (r + 1) % comm.size();\n"),
    ("lessons/05_blocking_ring/a.cpp", "next = (r + 1) % comm.size();\n"),
    ("src/ring_attention/ring/a.cpp", "if (ring.rank % 2 == 0) {}\n"),
    ("src/ring_attention/cuda/a.cpp", 'throw InputError("unknown: see --kernel " + name);\n'),
    ("lessons/emulator/CMakeLists.txt", 'include_directories("${PROJECT_SOURCE_DIR}/tests")\n'),
    ("lessons/emulator/machine.cpp", '#include "support/checks.hpp"\n'),
    ("src/CMakeLists.txt", "target_compile_options(x PRIVATE -ffast-math)\n"),
]
MUST_PASS = [
    ("src/ring_attention/cuda/a.cpp", "const int i = --n;  // \"--kernel\"\n"),
    ("src/program/a.cpp", 'throw InputError("--kernel");\n'),
    ("src/program/train/a.cpp", '#include "model/layer.hpp"\n#include "io/npy.hpp"\n'),
    ("src/program/a.cpp", '#include "ring_attention/ring/forward.hpp"\nstd::printf("MPI_ %d", x % 3);\n'),
    ("src/ring_attention/core/a.hpp", "// MPI_Barrier, printf( and <<<\nstd::snprintf(text, 9, \"%d\", 1);\n"),
    ("lessons/05_blocking_ring/a.cpp", "if (ring.rank % 2 == 0) MPI_Send();\n"),
    ("lessons/common/a.hpp", '#include "common/b.hpp"  // as tests/c.cpp\n'),
    ("src/ring_attention/core/a.cpp", "return states[i % states.size()] % shape.heads;\n"),
]


def files():
    """What git tracks; everything, in a copy without git."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True)
    names = listed.stdout.split("\0") if listed.returncode == 0 else [
        file.relative_to(ROOT).as_posix() for top in ("src", "lessons", "tests") for file in (ROOT / top).rglob("*")
    ] + ["CMakeLists.txt", "CMakePresets.json", "Makefile"]
    own = Path(__file__).resolve()
    kinds = r".*\.(cpp|hpp|cuh?|cmake)$|(.*/)?(CMakeLists\.txt|CMakePresets\.json|Makefile)$"
    return [name for name in names if re.match(kinds, name) and (ROOT / name).is_file() and ROOT / name != own]


def main():
    found = [f"the rule about {text!r} in {name} is dead" for name, text in MUST_FAIL if not list(complaints(name, text))]
    found += [f"false alarm: {name}: {why}" for name, text in MUST_PASS for _, why in complaints(name, text)]
    names = files()
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        found += [f"{name}:{line}: {why}" for line, why in complaints(name, text)]
    print("\n".join(found + [f"{len(names)} files, {len(found)} complaints"]))
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
