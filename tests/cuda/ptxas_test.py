"""What ptxas said of every kernel when it was built: ptxas_test.py OBJECT,OBJECT,...

Fails on registers that were spilled to memory, and on wgmma or setmaxnreg that the compiler made useless: C7508 (setmaxnreg
ignored), C7510 and C7511 (wgmma serialised). Prints registers and spills, a line a file."""

import re
import sys
from pathlib import Path

USELESS = re.compile(r"C7508|C7510|C7511")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")

# Bytes spilled and read again, by file and architecture: dQ by atomics at 128 columns wants a few registers more than
# there are.
ALLOWED = {"mma_backward": {"sm_80": 72, "sm_89": 72, "sm_90a": 32}}


def kernels(log):
    """(name, architecture, bytes spilled, registers) of each kernel."""
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", log):
        entry, spills, registers = ENTRY.search(part), SPILLS.search(part), REGISTERS.search(part)
        if entry and registers:
            yield entry[1], entry[2], int(spills[2]) + int(spills[3]) if spills else -1, int(registers[1])


def complaints(log, allowed={}):
    found = [line.strip() for line in log.splitlines() if USELESS.search(line)]
    all_kernels = list(kernels(log))
    if not all_kernels:
        found.append("no kernel at all")
    for name, architecture, spilled, _ in all_kernels:
        if not 0 <= spilled <= allowed.get(architecture, 0):
            found.append(f"{name} for {architecture} spills {spilled} bytes")
    return found


GOOD = """ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""
MUST_FAIL = ["", GOOD.replace("0 bytes spill loads", "8 bytes spill loads"),
             GOOD + "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async\n"]


def main(objects):
    bad = ["the rules are dead" for text in MUST_FAIL if not complaints(text)] + complaints(GOOD)
    for name in objects:
        log = Path(name + ".ptxas")
        if not log.exists():
            bad.append(f"{log} is not there")
            continue
        text = log.read_text()
        bad += [f"{log.name}: {line}" for line in complaints(text, ALLOWED.get(log.name.split(".")[0], {}))]
        by_architecture = {}
        for _, architecture, _, registers in kernels(text):
            by_architecture.setdefault(architecture, []).append(registers)
        for architecture, registers in sorted(by_architecture.items()):
            print(f"{log.name.split('.')[0]:28} {architecture:8} {len(registers):3} kernels, {min(registers)} to "
                  f"{max(registers)} registers")
    print("\n".join(bad))
    return 1 if bad or not objects else 0


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1].split(",") if name]))
