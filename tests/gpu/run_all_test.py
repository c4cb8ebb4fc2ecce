"""A dry run of tests/gpu/run_all.sh: programs that stand in for those that need a GPU note how they are called."""

import os
import re
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
KERNELS = SOURCE / "src/ring_attention/cuda/kernels"

STAND_IN = """#!/bin/sh
echo "$(basename "$0") $* [$RING_ATTENTION_CASES]" >>"$CALLS"
case "$(basename "$0") $*" in
  *"$FAILING"*) echo "why $FAILING fails" && exit 1 ;;
  nvidia-smi*csv,noheader*) printf '%b\\n' "${CAPABILITIES:-9.0}" ;;
  nvidia-smi*--format=csv*) printf 'index, name, driver_version\\n0, NVIDIA H100, 570.1\\n' ;;
  cmake*--preset*)
    echo '-- GPU parts: CUDA 13.0.88 for 90a-real, NCCL 2.28.9'
    echo "CMAKE_CUDA_COMPILER:STRING=$(command -v nvcc)" >"$BUILD/CMakeCache.txt" ;;
  *--version*|mpicxx*-v*) echo "version of $(basename "$0")" ;;
  *bench_cuda.py*) shift 4; echo '{"tflops": 1}' >"$2" ;;
  ctest*) echo "$CTEST_SAYS" ;;
  compute-sanitizer*) echo "[  PASSED  ] 4 tests." ;;
esac
"""


class RunAllTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.programs = self.folder / "bin"
        self.programs.mkdir()
        for name in ("nvidia-smi", "cmake", "ctest", "compute-sanitizer", "python3", "ninja", "mpicxx", "mpiexec", "nvcc", "c++"):
            self.stand_in(self.programs / name)

    def stand_in(self, path):
        path.write_text(STAND_IN)
        path.chmod(0o755)

    def run_all(self, *stages, failing="nothing fails", says="", **environment):
        calls = self.folder / "calls"
        calls.write_text("")
        environment = {**os.environ, "PATH": f"{self.programs}:/usr/bin:/bin", "CALLS": str(calls), "FAILING": failing,
                       "CTEST_SAYS": says, "BUILD": str(self.folder / "build"), "CUDA_PATH": str(self.folder / "cuda"),
                       "GPUKIT_PREFIX": str(self.folder / "kit"), **environment}
        done = subprocess.run(["bash", SOURCE / "tests/gpu/run_all.sh", *stages], capture_output=True, text=True,
                              env=environment, timeout=60)
        self.assertNotIn("command not found", done.stderr)
        return done.returncode, done.stdout, calls.read_text()

    def steps(self, output):
        """The table: {step: verdict}."""
        return dict(re.findall(r"^(\w+) +\d+ s  (.*)$", output, re.MULTILINE))

    def test_all_stages(self):
        code, out, calls = self.run_all()
        self.assertEqual(self.steps(out), dict.fromkeys(
            ("build", "tests", "rings", "memcheck", "racecheck", "benchmark"), "ok"))
        self.assertEqual(code, 0, out)
        self.assertIn("-G Ninja", calls)
        self.assertIn("-DRING_ATTENTION_WERROR=OFF -DCMAKE_CUDA_ARCHITECTURES=90a-real", calls)
        self.assertIn("--exclude-regex", calls)
        self.assertIn("--tests-regex", calls)
        self.assertIn("bench_cuda.py", calls)

    def test_the_mpi_in_path_is_forced_only_with_unpacked_dependencies(self):
        """Without them CMake chooses MPICH, also where mpicxx is Open MPI's."""
        _, _, calls = self.run_all("build", RING_ATTENTION_DEPS="")
        self.assertNotIn("MPI_CXX_COMPILER", calls)
        self.assertNotIn("MPIEXEC_EXECUTABLE", calls)
        _, _, calls = self.run_all("build", RING_ATTENTION_DEPS=str(self.folder))
        self.assertIn(f"-DRING_ATTENTION_DEPS={self.folder} -DMPI_CXX_COMPILER={self.programs}/mpicxx "
                      f"-DMPIEXEC_EXECUTABLE={self.programs}/mpiexec", calls)

    def test_one_archive_has_what_a_report_needs(self):
        for failing in ("nothing fails", "ctest", "nvcc"):
            with self.subTest(failing=failing):
                _, out, _ = self.run_all(failing=failing)
                archive = re.fullmatch(r"To report it, send (.*\.tar\.gz)", out.splitlines()[-1])
                self.assertTrue(archive, out)
                with tarfile.open(archive[1]) as tar:
                    text = {Path(name).name: tar.extractfile(name).read().decode() for name in tar.getnames() if "." in Path(name).name}
                for step in ("build", "tests", "rings", "memcheck", "racecheck", "benchmark"):
                    self.assertIn(f"{step}.log", text)
                self.assertIn(dict(self.steps(out))["tests"], text["run_all.log"])
                self.assertIn("NVIDIA H100, 570.1", text["gpu.txt"])
                self.assertIn("tflops", text["benchmark.json"])
                for words in ("$ git describe", "version of cmake", "version of c++", "version of mpicxx", "mpirun --version",
                              "GPU parts: CUDA 13.0.88 for 90a-real, NCCL 2.28.9", "nvidia-smi topo -m"):
                    self.assertIn(words, text["versions.txt"])
                self.assertEqual("version of nvcc" in text["versions.txt"], failing != "nvcc")

    def test_the_newest_gpu_is_the_one_to_compile_for(self):
        for capabilities, architecture in (("7.5\\n9.0", "90a-real"), ("12.0\\n8.9", "120-real"), ("8.9", "89-real")):
            with self.subTest(capabilities=capabilities):
                _, _, calls = self.run_all("build", CAPABILITIES=capabilities)
                self.assertIn(f"-DCMAKE_CUDA_ARCHITECTURES={architecture} ", calls)

    def test_each_stage_alone(self):
        for stage, steps in (("build", {"build"}), ("tests", {"tests"}), ("rings", {"rings"}),
                             ("sanitizers", {"memcheck", "racecheck"}), ("benchmark", {"benchmark"})):
            with self.subTest(stage=stage):
                code, out, _ = self.run_all(stage)
                self.assertEqual((code, set(self.steps(out))), (0, steps), out)
        self.assertEqual(set(self.steps(self.run_all("build", "rings")[1])), {"build", "rings"})

    def test_an_unknown_stage_runs_nothing(self):
        code, _, calls = self.run_all("build", "everything")
        self.assertEqual((code, calls), (2, ""))

    def test_without_a_gpu_it_is_skipped(self):
        code, out, _ = self.run_all(failing="nvidia-smi")
        self.assertEqual(code, 77)
        self.assertIn("skipped", out)
        self.assertEqual(self.run_all(CAPABILITIES="NVIDIA-SMI has failed")[0], 77)

    def test_after_a_failure_the_next_stage_runs(self):
        for failing, step in (("cmake --preset", "build"), ("ctest", "tests"), ("racecheck", "racecheck"), ("bench_cuda", "benchmark")):
            with self.subTest(failing=failing):
                code, out, _ = self.run_all(failing=failing)
                steps = self.steps(out)
                self.assertEqual((code, steps[step], len(steps)), (1, "FAILED", 6), out)
                self.assertIn(f"why {failing} fails", out)

    def test_a_skipped_test_is_a_failure(self):
        code, out, _ = self.run_all("tests", says="1/1 Test #1: gpu.rings ...***Skipped 0.1 sec")
        self.assertEqual((code, self.steps(out)["tests"]), (1, "FAILED"))

    def test_where_compute_sanitizer_may_be(self):
        (self.programs / "compute-sanitizer").unlink()
        code, out, _ = self.run_all("sanitizers")
        self.assertEqual(code, 1)
        self.assertIn("skipped: there is no compute-sanitizer", self.steps(out)["memcheck"])
        (self.folder / "cuda/bin").mkdir(parents=True)
        self.stand_in(self.folder / "cuda/bin/compute-sanitizer")
        code, out, calls = self.run_all("sanitizers")
        self.assertEqual((code, self.steps(out)), (0, {"memcheck": "ok", "racecheck": "ok"}), out)
        self.assertIn("--tool memcheck", calls)

    def test_racecheck_leaves_out_the_kernels_that_use_bulk_copies(self):
        """The names are those of the sources: a kernel of another name would be reported with false hazards."""
        _, _, calls = self.run_all("sanitizers")
        (racecheck,) = (line for line in calls.splitlines() if "--tool racecheck" in line)
        names = re.findall(r"--kernel-name-exclude kernel_substring=(\w+)", racecheck)
        self.assertTrue(names)
        self.assertNotIn("--kernel-name-exclude", calls.replace(racecheck, ""))
        signature = re.compile(r"__global__[^{;]*\{")
        for path in sorted(KERNELS.rglob("*.cu*")):
            text = path.read_text()
            if not re.search(r"\bcp_async_bulk\(", text):
                continue
            with self.subTest(file=path.name):
                found = [name for name in names if any(name in head for head in signature.findall(text))]
                self.assertEqual(len(found), 1, f"which of {names} is the kernel of {path}?")
                names.remove(found[0])
        self.assertEqual(names, [])
