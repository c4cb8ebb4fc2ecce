"""What the machine code of the kernels says without a GPU: two tables in lesson 11's ESTIMATES.md, and bounds.

    machine_code.py OBJECT,OBJECT,... [--write]

Reads each object's instructions with cuobjdump, and its ptxas log (OBJECT.ptxas). Fails if a kernel keeps registers in
memory, or if a main loop is not the page's within 5 %. --write writes the page; it needs the objects of all architectures.
The instructions of a tile are those of the shortest way through the loop that multiplies matrices; for a masked tile, of
the shortest way that replaces scores by minus infinity.
"""

import collections
import heapq
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ladder_page import PAGE

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cuda"))
from ptxas_test import kernels  # noqa: E402

MARKED = re.compile(r"(<!-- code:begin[^\n]*-->\n).*?(<!-- code:end -->)", re.DOTALL)
ROW = re.compile(r"\| ([\w, -]+) \| (sm_\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+|-)[ |]")
MATRIX = re.compile(r"\b(?:HGMMA\.64x(\d+)x16|HMMA\.16816)")
HIDES = re.compile(r"\bFSEL\b.*-INF")
SPILLS = re.compile(r"\b(LDL|STL)\b")
CLOCKS_OF_HMMA, CLOCKS_OF_MUFU = 8, 8  # for a warp: 4096 operations at 512 a clock (A100), 32 exponentials at 4 a clock
MASKED_OF_FULL = {"forward_5_pingpong": 1.41}  # most instructions of a masked tile for one of a full tile
SUMS = {"0": "", "1": " atomics", "2": "", "3": "", "true": " atomics", "false": ""}  # DqSum, and backward 2's flag

Loop = collections.namedtuple("Loop", "products exponentials full masked clocks")


def functions(text):
    """(architecture, name, [(address, instruction)]) of each function in cuobjdump's output."""
    architecture, name, code = None, None, []
    for line in text.splitlines():
        found = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line)
        if found:
            code.append((int(found[1], 16), found[2].strip()))
        elif "Function :" in line:
            if name:
                yield architecture, name, code
            name, code = line.split()[-1], []
        elif line.startswith("arch ="):
            if name:
                yield architecture, name, code
            architecture, name, code = line.split()[-1], None, []
    if name:
        yield architecture, name, code


def successors(code):
    """For each instruction the indices of those that may follow."""
    index = {address: i for i, (address, _) in enumerate(code)}
    following = []
    for i, (_, text) in enumerate(code):
        operation = re.sub(r"^@!?U?P\w+\s+", "", text)
        conditional = operation != text or re.match(r"BRA\S*\s+!?U?[PR]", operation)
        target = re.search(r"(0x[0-9a-f]+)$", operation) if operation.startswith("BRA") else None
        after = [index[int(target[1], 16)]] if target and int(target[1], 16) in index else []
        if i + 1 < len(code) and (conditional or not re.match(r"BRA|EXIT|RET", operation)):
            after.append(i + 1)
        following.append(after)
    return following


def shortest_turn(code, following, head, hides):
    """The indices of the shortest way from `head` back to it that passes a product, with `hides` a replacement, too."""
    start = (head, False, not hides)
    best, previous, queue = {start: 1}, {}, [(1, start)]
    while queue:
        length, state = heapq.heappop(queue)
        i, multiplied, hidden = state
        multiplied, hidden = multiplied or bool(MATRIX.search(code[i][1])), hidden or bool(HIDES.search(code[i][1]))
        if head in following[i] and multiplied and hidden:
            way = [i]
            while state != start:
                state = previous[state]
                way.append(state[0])
            return way
        for j in following[i]:
            after = (j, multiplied, hidden)
            if j != head and length + 1 < best.get(after, 1 << 30):
                best[after], previous[after] = length + 1, state
                heapq.heappush(queue, (length + 1, after))
    return []


def main_loop(code):
    """The loop that multiplies most and takes exponentials, or None."""
    products = [i for i, (_, text) in enumerate(code) if MATRIX.search(text)]
    following = successors(code)
    heads = {j for i, after in enumerate(following) for j in after
             if j <= i and sum(j <= product <= i for product in products) >= 4}
    found = []
    for head in heads:
        way = shortest_turn(code, following, head, False)
        matrix = [match for match in (MATRIX.search(code[i][1]) for i in way) if match]
        clocks = sum(int(match[1]) // 2 if match[1] else CLOCKS_OF_HMMA for match in matrix)
        exponentials = sum("MUFU.EX2" in code[i][1] for i in way)
        if exponentials:
            masked = shortest_turn(code, following, head, True)
            scores = sum(bool(HIDES.search(code[i][1])) for i in masked)
            found.append(Loop(len(matrix), exponentials, len(way), len(masked) if 2 * scores >= exponentials else 0, clocks))
    # Where a loop has several entries, a way from one in the code of full tiles to a mask is a turn longer.
    return max(found, key=lambda loop: (loop.products, -loop.full, -(loop.masked or 1 << 30)), default=None)


def short_name(file, function):
    """(the kernel's number and name, its columns) of an instance in bf16, or None."""
    plain = subprocess.run(["c++filt", function], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\w+)<__nv_bfloat16, (\d+)(?:, (?:\(.*?DqSum\))?(\d|true|false))?", plain)
    if not found:
        return None
    name = re.sub(r"_(\d)_", r" \1 ", file).replace("_", "-")
    part = {"backward_dkdv_kernel": ", dK and dV", "backward_dq_kernel": ", dQ"}.get(found[1], "")
    return name + (SUMS.get(found[3], "") if part else "") + part, int(found[2])


def read(objects):
    """({(kernel, architecture, columns): Loop}, complaints)"""
    loops, bad = {}, []
    for name in objects:
        if not Path(name).exists():
            bad.append(f"{name} does not exist")
            continue
        text = subprocess.run([CUOBJDUMP, "-sass", name], capture_output=True, text=True, check=True).stdout
        file = Path(name).name.split(".")[0]
        for architecture, function, code in functions(text):
            bad += [f"{file}: {function}: {line}" for _, line in code if SPILLS.search(line)][:1]
            kernel = short_name(file, function)
            # The rate of mma.sync is known for sm_80 only, and sm_89 and sm_90a have nearly the same loops.
            loop = main_loop(code) if kernel and ("HGMMA" in text or architecture == "sm_80") else None
            if loop:
                loops[(kernel[0], architecture, kernel[1])] = loop
                if loop.masked > loop.full * MASKED_OF_FULL.get(file, 10):
                    bad.append(f"{kernel[0]}: a masked tile has {loop.masked} instructions, a full one {loop.full}")
    return loops, bad


def differences(loops, page):
    """Complaints where a loop is not the page's within 5 %, of the architectures that `loops` has."""
    found = filter(None, map(ROW.match, page.splitlines()))
    want = {(m[1], m[2], int(m[3])): tuple(int(n.replace("-", "0")) for n in m.groups()[3:]) for m in found}
    architectures = {architecture for _, architecture, _ in loops}
    bad = [f"the page's {key} is not among the objects" for key in want if key[1] in architectures and key not in loops]
    for key, loop in loops.items():
        if key not in want:
            bad.append(f"the page lacks {key}")
        elif loop.products != want[key][0] or any(abs(is_ - was) > 0.05 * was
                                                  for is_, was in zip(loop[1:4], want[key][1:])):
            bad.append(f"{key}: {tuple(loop[:4])}, the page has {want[key]}")
    return bad


def tables(loops, objects):
    logs = collections.defaultdict(list)
    for name in objects:
        for _, architecture, *numbers in kernels(Path(name + ".ptxas").read_text(encoding="utf-8")):
            logs[architecture].append(numbers)
    lines = ["| architecture | kernels | bytes of stack | bytes spilled | registers | most barriers |", "|---" * 6 + "|"]
    for architecture, all_numbers in sorted(logs.items()):
        spilled, registers, stack, barriers = zip(*all_numbers)
        lines.append(f"| {architecture} | {len(all_numbers)} | {max(stack)} | {max(spilled)} | {min(registers)} to "
                     f"{max(registers)} | {max(barriers)} |")
    lines += ["", "| kernel | architecture | D | products | exponentials | instructions | of a masked tile | T | issue / T | "
              "exponentials / T | at most |", "|---" * 11 + "|"]
    for (kernel, architecture, columns), loop in sorted(loops.items()):
        issue, exponentials = loop.full / loop.clocks, loop.exponentials * CLOCKS_OF_MUFU / loop.clocks
        masked = f"{loop.masked} ({loop.masked / loop.full:.2f})" if loop.masked else "-"
        lines.append(f"| {kernel} | {architecture} | {columns} | {loop.products} | {loop.exponentials} | {loop.full} | "
                     f"{masked} | {loop.clocks} | {100 * issue:.0f} % | "
                     f"{100 * exponentials:.0f} % | {100 / max(1, issue, exponentials):.0f} % |")
    return "\n".join(lines) + "\n"


SAMPLE = ["HGMMA.64x128x16.F32 R24"] * 4 + ["@P0 BRA 0x70", "MUFU.EX2 R1, R1", "BRA 0xa0", "FSEL R1, R1, -INF, P1",
                                            "FSEL R2, R2, -INF, P1", "MUFU.EX2 R1, R1", "@P2 BRA 0x0", "EXIT"]


def main(objects, write):
    assert main_loop([(16 * i, line) for i, line in enumerate(SAMPLE)]) == Loop(4, 1, 8, 9, 256)
    loops, bad = read(objects)
    old = PAGE.read_text(encoding="utf-8")
    if write:
        new = MARKED.sub(lambda match: match[1] + tables(loops, objects) + match[2], old)
        PAGE.write_text(new, encoding="utf-8")
    else:
        bad += differences(loops, old)
    print("\n".join(bad or [f"{len(loops)} main loops, as on the page"]))
    return 1 if bad or not loops else 0


if __name__ == "__main__":
    CUOBJDUMP = shutil.which("cuobjdump", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    if not CUOBJDUMP:
        print("skipped: no cuobjdump, which is part of the CUDA toolkit (or pip install nvidia-cuda-cuobjdump)")
        sys.exit(77)
    sys.exit(main(sys.argv[1].split(","), "--write" in sys.argv))
