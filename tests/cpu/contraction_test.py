"""No compiler decides which products and sums are fused into one rounding.

Each one decides anew for every kernel, and a query would get other bits among few queries than among many. All files
are compiled with -ffp-contract=off, and the kernels say `fma` (cpu/simd.hpp). If that is so for each of their products
that is added to something, a compiler that may fuse finds nothing to do: the machine code is the same.
`contraction_test.py`: the forward of the widest instruction set; `long`: all.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

BUILD = os.environ["RING_ATTENTION_BUILD"]
ISA = re.compile(r"RING_ATTENTION_ISA=(\w+)")
OUTPUT = re.compile(r" -o (\S+)")
FLAG = re.compile(r"-ffp-contract=(\w+)")
MEASURED_AT_THEIR_BEST = re.compile("/benchmarks/|/ladder/")  # plain loops and Eigen: `make bench` only
SHORT = re.compile(r"kernels_(avx512|neon|generic)_float\.dir/.*/cpu/forward_kernel\.cpp")


def machine_code(file):
    return subprocess.run(["objdump", "-d", "--no-show-raw-insn", file], capture_output=True, text=True,
                          check=True).stdout.split("\n", 3)[3]


def same_when_fused(entry, folder):
    """Does what the build has compiled remain the same when the compiler may fuse?"""
    (built,) = OUTPUT.findall(entry["command"])
    fused = os.path.join(folder, "fused.o")
    command = OUTPUT.sub(f" -o {fused}", FLAG.sub("-ffp-contract=fast", entry["command"]))
    subprocess.run(command, shell=True, cwd=entry["directory"], check=True)
    return machine_code(os.path.join(entry["directory"], built)) == machine_code(fused)


def main():
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        commands = [entry for entry in json.load(file) if entry["file"].endswith((".cpp", ".cxx"))]
    fused = [entry["file"] for entry in commands
             if FLAG.findall(entry["command"])[-1:] != ["off"] and not MEASURED_AT_THEIR_BEST.search(entry["command"])]
    for file in fused:
        print(f"{file}: compiled without -ffp-contract=off")
    if shutil.which("objdump") is None:
        print("skipped: the kernels' machine code, for there is no objdump")
        return 1 if fused else 77
    kernels = [entry for entry in commands if "/ring_attention/cpu/" in entry["file"]
               and ("long" in sys.argv or SHORT.search(entry["command"]))
               and entry["file"].endswith("_kernel.cpp")]
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for entry in kernels:
            if not same_when_fused(entry, folder):
                print("a product and a sum without fma():", entry["file"], *ISA.findall(entry["command"]))
                differ += 1
    print(f"{len(commands)} files, {len(fused)} may be fused; {len(kernels)} kernels compared, {differ} differ")
    return 1 if fused or differ or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
