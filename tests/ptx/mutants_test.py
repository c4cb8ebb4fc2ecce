"""Mistakes in the headers that the GPU emulator replaces, and in kernels: mutants_test.py TEST_PTX NVCC INCLUDE [NAME...]

Each mutant is one edit of a copy of src. Its kernel is compiled to PTX, and TEST_PTX runs that instead of its own
(PTX_FILE). tensor_map.cuh is host code: there TEST_PTX is linked again, with the object of the edited source. A mutant has
to fail with the sentence that is listed; the kernels without an edit pass on 20 seeds."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(os.environ["RING_ATTENTION_SOURCE"]) / "src"
CUDA = "ring_attention/cuda/"
MMA = ("forward_2_mma", "forward mma")
SPECIALIZED = ("forward_4_warp_specialized", "forward warp-specialized")
BULK = ("backward_5_bulk", "backward wgmma-bulk")
WRONG = "FAILED: beyond the tolerance"  # of the reference's numbers
HOPPER = "RING_ATTENTION_HOPPER"
HOST = "tensor_map.cuh"

# Name, file, text, its replacement, kernel, what is said (a regular expression).
MUTANTS = [
    ("descriptor_stride", "ptx_hopper.cuh", "1024ULL >> 4U << 32U", "512ULL >> 4U << 32U", SPECIALIZED, WRONG),
    ("descriptor_swizzle", "ptx_hopper.cuh", "1ULL << 62U", "2ULL << 62U", SPECIALIZED, "swizzle mode 2"),
    ("descriptor_leading", "ptx_hopper.cuh", "(columns_on >> 4U) << 16U", "(16U >> 4U) << 16U", SPECIALIZED, WRONG),
    ("transposition", "ptx_hopper.cuh", '"n"(b_by_rows))', '"n"(1 - b_by_rows))', SPECIALIZED, WRONG + "|under way"),
    ("halves_of_b", "ptx.cuh", '"r"(a[3]), "r"(b0), "r"(b1)', '"r"(a[3]), "r"(b1), "r"(b0)', MMA, WRONG),
    ("halves_of_a_pair", "ptx.cuh", '"f"(high), "f"(low)', '"f"(low), "f"(high)', MMA, WRONG),
    ("source_size", "ptx.cuh", "valid ? 16 : 0", "16", MMA, WRONG + "|in no allocation"),
    ("coordinates", "ptx_hopper.cuh", '"r"(column), "r"(row), "r"(matrix)', '"r"(row), "r"(column), "r"(matrix)',
     SPECIALIZED, WRONG),
    ("no_wgmma_wait", "ptx_hopper.cuh", HOPPER + '("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");', "",
     SPECIALIZED, "accumulator of a wgmma that is under way"),
    ("no_wgmma_fence", "ptx_hopper.cuh", HOPPER + '("wgmma.fence.sync.aligned;" :: : "memory");', "", SPECIALIZED,
     "no wgmma.fence"),
    ("no_proxy_fence", "ptx_hopper.cuh", "fence_proxy_async() {\n  " + HOPPER + '("fence.proxy.async.shared::cta;" :: : "memory");',
     "fence_proxy_async() {", BULK,
     "without fence.proxy.async"),
    ("wait_inverted", "ptx_hopper.cuh", '"@!done bra again;', '"@done bra again;', SPECIALIZED,
     "RACE|under way|never written|no end after"),
    ("expects_and_does_not_arrive", "ptx_hopper.cuh", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
     "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;", SPECIALIZED, "DEADLOCK"),
    ("no_bulk_wait", "ptx_hopper.cuh", HOPPER + '("cp.async.bulk.wait_group.read 0;" :: : "memory");', "", BULK,
     "still reads|RACE"),
    ("expected_bytes", "kernels/common/hopper_memory.cuh", "mbarrier_arrive_expect_tx(full, kv_bytes);",
     "mbarrier_arrive_expect_tx(full, kv_bytes / 2);", SPECIALIZED, "RACE|under way|tx-count|DEADLOCK"),
    ("released_early", "kernels/forward_4_warp_specialized.cu",
     "    state.start_scores(shared.q(0, group), shared.k(stage));\n",
     "    state.start_scores(shared.q(0, group), shared.k(stage));\n"
     "    if (thread % 32 == 0) mbarrier_arrive(shared.k_empty(stage));\n", SPECIALIZED, "too many arrivals|still reads"
     "|RACE"),
    ("no_wait_for_v", "kernels/forward_4_warp_specialized.cu", "    mbarrier_wait(shared.v_full(stage), parity);\n", "",
     SPECIALIZED, "RACE|under way|never written"),
    ("no_sync_after_init", "kernels/forward_4_warp_specialized.cu", "  __syncthreads();\n", "", SPECIALIZED,
     "no initialised mbarrier|init of the mbarrier|never written"),
    ("parity", "kernels/forward_4_warp_specialized.cu", "    mbarrier_wait(shared.v_full(stage), parity);\n",
     "    mbarrier_wait(shared.v_full(stage), parity ^ 1U);\n", SPECIALIZED, "RACE|under way|DEADLOCK|never written"),
    ("barrier_count", "kernels/common/backward_dkdv_wgmma.cuh", "named_barrier<256>(1);", "named_barrier<128>(1);", BULK,
     "RACE|never written|barrier"),
    ("no_wait_for_the_read", "kernels/common/backward_dkdv_wgmma.cuh",
     "mbarrier_wait(shared.read(), static_cast<unsigned>(number % 2) ^ 1U);", "", BULK, "RACE|still reads|too many"),
    ("map_box", HOST, "static_cast<cuuint32_t>(box_rows), 1}", "static_cast<cuuint32_t>(box_rows) / 2, 1}", SPECIALIZED,
     "DEADLOCK"),
    ("map_swizzle", HOST, "SWIZZLE_128B", "SWIZZLE_NONE", SPECIALIZED, WRONG),
    ("map_coordinates", HOST, "wide(rows), wide(matrices)}", "wide(matrices), wide(rows)}", SPECIALIZED, WRONG),
    ("map_stride", HOST, "wide(2 * dim * rows)}", "wide(2 * dim * (rows + 8))}", SPECIALIZED, WRONG + "|in no allocation"),
]


def run(program, kernel, ptx=None, seed=1, arrival=None):
    environment = os.environ | {"PTX_KERNELS": kernel, "PTX_SEED": str(seed), "PTX_STEPS": "100000000"}
    if ptx:
        environment["PTX_FILE"] = str(ptx)
    if arrival is not None:
        environment["PTX_ARRIVAL"] = str(arrival)
    direction = "*Forward*" if kernel.startswith("forward") else "*Backward*"
    done = subprocess.run([program, "--gtest_filter=" + direction, "--gtest_fail_fast"], env=environment,
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def edited_source(folder, file, old, new):
    """An edited copy of src. Without the text that the edit replaces, a ValueError."""
    copy = folder / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCE / "ring_attention", copy / "ring_attention")
    if file:
        edited = copy / CUDA / file
        text = edited.read_text()
        if old not in text:
            raise ValueError(f"{file} has no line with {old!r}")
        edited.write_text(text.replace(old, new))
    return copy


def compiled(nvcc, include, folder, source, *edit):
    """The PTX of a kernel of an edited copy of src."""
    copy, ptx = edited_source(folder, *edit), folder / "kernel.ptx"
    subprocess.run([nvcc, "-ptx", "-O3", "-DNDEBUG", "-arch=compute_90a", "-lineinfo", "-std=c++20", f"-I{copy}",
                    f"-I{include}", str(copy / CUDA / "kernels" / (source + ".cu")), "-o", str(ptx)], check=True)
    return ptx


def linked(program, nvcc, folder, source, *edit):
    """The program with the object of an edited copy of src in place of its own. It comes first, because its inline
    functions are those of the program then."""
    copy, thing = edited_source(folder, *edit), folder / "mutant.o"
    subprocess.run([nvcc, "-c", "-O3", "-DNDEBUG", "--generate-code=arch=compute_90a,code=compute_90a", "-lineinfo",
                    "--no-compress", "-Xcompiler=-fPIC", "-std=c++20", f"-I{copy}",
                    str(copy / CUDA / "kernels" / (source + ".cu")), "-o", str(thing)], check=True)
    build = Path(program).parent
    command = (build / "CMakeFiles" / (Path(program).name + ".dir") / "link.txt").read_text().split()
    output = command.index("-o")
    command[output + 1] = str(folder / "mutant")
    command = [word for word in command if not word.endswith(source + ".cu.o")]
    command.insert(1, str(thing))
    subprocess.run(command, cwd=build, check=True)
    return folder / "mutant"


def complaint(program, nvcc, include, folder, mutant):
    """None if the mutant fails with its sentence."""
    name, file, old, new, (source, kernel), sentence = mutant
    ptx = None
    if file == HOST:
        program = linked(program, nvcc, folder, source, file, old, new)
    else:
        ptx = compiled(nvcc, include, folder, source, file, old, new)
    for arrival in (0, 1, 2):
        code, output = run(program, kernel, ptx, 1, arrival)
        if code:
            break
    said = re.search(sentence, output) if code else None
    said = output[output.rfind("\n", 0, said.start()) + 1:].split("\n")[0] if said else "NOT SEEN"
    print(f"{name}, arrival {arrival}: {said[:170]}", flush=True)
    return None if said != "NOT SEEN" else f"{name}: exit code {code}, no sentence like {sentence!r} in\n{output[-1500:]}"


def control(program, nvcc, include, folder, source, kernel):
    """None if the kernel without an edit passes on 20 seeds, and once as an object that is linked again."""
    ptx = compiled(nvcc, include, folder, source, "", "", "")
    for seed in range(1, 21):
        code, output = run(program, kernel, ptx, seed)
        if code:
            return f"{kernel}, without an edit, PTX_SEED={seed}:\n{output[-1500:]}"
    code, output = run(linked(program, nvcc, folder, source, "", "", ""), kernel)
    if code:
        return f"{kernel}, without an edit, linked again:\n{output[-1500:]}"
    print(f"{kernel}, without an edit: passes on 20 seeds", flush=True)
    return None


def main(program, nvcc, include, *names):
    names = [name for name in names if name != "long"]
    with tempfile.TemporaryDirectory() as folder:
        bad = [complaint(program, nvcc, include, Path(folder), mutant) for mutant in MUTANTS
               if not names or mutant[0] in names]
        if not names or "control" in names:
            bad += [control(program, nvcc, include, Path(folder), *kernel) for kernel in (MMA, SPECIALIZED, BULK)]
    bad = [line for line in bad if line]
    print("\n".join(bad) or "all mutants fail, and the kernels pass")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
