"""The kernels' object files define nothing but their tables.

Else the linker could take a function that was compiled for wide instructions, an inline one of the standard library
say, for the whole program, and the program would die on a machine without them. They use nothing but the C library's
memory functions.
"""

import shutil
import subprocess
import sys

NAMES = ("forward", "forward_1", "forward_2", "backward", "add_product", "exact_forward", "exact_forward_1",
         "exact_forward_2", "exact_backward", "add_exact_terms")
C_LIBRARY = {"memset", "memcpy", "memmove", "__stack_chk_fail", "GLOBAL_OFFSET_TABLE_",
             "_GLOBAL_OFFSET_TABLE_"}


def symbols(file):
    """(kind, name) of what the file defines for others or needs from them."""
    lines = subprocess.run(["nm", "-C", file], capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        kind, name = line[17:].split(" ", 1)
        if kind == "U" or kind.isupper():
            yield kind, name.removeprefix("_")


def main():
    files = [file for word in sys.argv[1:] for file in word.replace(";", ",").split(",")]
    if shutil.which("nm") is None:
        print("skipped: there is no nm")
        return 77
    wrong, tables, with_table = [], 0, set()
    for file in files:
        for kind, name in symbols(file):
            if kind == "U":
                ok = name in C_LIBRARY or name.removeprefix("_") in C_LIBRARY or "_san" in name
            else:
                ok = name.startswith("ring_attention::cpu::") and name.rsplit("::")[-1] in NAMES
                tables += ok
                with_table.update([file] if ok else [])
            if not ok:
                wrong.append(f"{file}: {kind} {name}")
    print("\n".join(wrong + [f"{len(files)} files, {tables} tables, {len(wrong)} complaints"]))
    return 1 if wrong or len(with_table) != len(files) or not files else 0


if __name__ == "__main__":
    sys.exit(main())
