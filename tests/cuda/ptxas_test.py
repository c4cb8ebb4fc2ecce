"""Checks the ptxas log of every kernel's build: ptxas_test.py OBJECT,OBJECT,...

Fails if registers are spilled to memory or a kernel has a stack, and on every ptxas warning about lost performance:
C7508 (setmaxnreg ignored), C7510, C7511 and C7519 (wgmma serialised), and other C75xx. Prints the registers of each
file's kernels.
"""

import re
import sys
from pathlib import Path

LOST_SPEED = re.compile(r"C75\d\d|Potential Performance Loss")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers, used (\d+) barriers")


def kernels(log):
    """(name, architecture, bytes spilled, registers, bytes of stack, barriers) of each kernel."""
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", log):
        entry, spills, registers = ENTRY.search(part), SPILLS.search(part), REGISTERS.search(part)
        if entry and registers:
            numbers = [int(number) for number in spills.groups()] if spills else [-1, 0, -1]
            yield entry[1], entry[2], numbers[1] + numbers[2], int(registers[1]), numbers[0], int(registers[2])


def complaints(log):
    found = [line.strip() for line in log.splitlines() if LOST_SPEED.search(line)]
    all_kernels = list(kernels(log))
    if not all_kernels:
        found.append("the log has no kernel")
    for name, architecture, spilled, _, stack, _ in all_kernels:
        if spilled != 0 or stack != 0:
            found.append(f"{name} for {architecture} spills {spilled} bytes, and has {stack} bytes of stack")
    return found


GOOD = """ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""


MUST_FAIL = ["", GOOD.replace("0 bytes spill loads", "8 bytes spill loads"),
             GOOD.replace("0 bytes stack", "8 bytes stack"),
             *(GOOD + f"ptxas info    : ({code}) {words}\n" for code, words in (
                 ("C7508", "setmaxnreg ignored to maintain minimum register requirements"),
                 ("C7510", "Potential Performance Loss: wgmma.mma_async instructions are serialized"),
                 ("C7519", "wgmma"), ("C7600", "Potential Performance Loss: something new")))]


def main(objects):
    bad = ["a sample log that must fail passes" for text in MUST_FAIL if not complaints(text)] + complaints(GOOD)
    for name in objects:
        log = Path(name + ".ptxas")
        if not log.exists():
            bad.append(f"{log} does not exist")
            continue
        text = log.read_text()
        bad += [f"{log.name}: {line}" for line in complaints(text)]
        by_architecture = {}
        for _, architecture, _, registers, _, _ in kernels(text):
            by_architecture.setdefault(architecture, []).append(registers)
        for architecture, registers in sorted(by_architecture.items()):
            print(f"{log.name.split('.')[0]:28} {architecture:8} {len(registers):3} kernels, {min(registers)} to "
                  f"{max(registers)} registers")
    print("\n".join(bad))
    return 1 if bad or not objects else 0


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1].split(",") if name]))
