"""tests/not_run.py: what it says of tests that were left out, and which of them it takes for a failure."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.environ["RING_ATTENTION_SOURCE"], "tests/not_run.py")


class NotRunTest(unittest.TestCase):
    def run_on(self, *outputs, all_tests="ON"):
        """Exit code and words for tests t0, t1, ... with these outputs."""
        cases = "".join(
            f'<testcase name="t{i}" status="run">{"<skipped/>" if "skipped" in output else ""}'
            f"<system-out>{output}</system-out></testcase>"
            for i, output in enumerate(outputs)
        )
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(f"<testsuite>{cases}</testsuite>")
            file.flush()
            done = subprocess.run(
                [sys.executable, SCRIPT, file.name],
                env={**os.environ, "RING_ATTENTION_ALL_TESTS": all_tests},
                stdout=subprocess.PIPE,
                text=True,
            )
        return done.returncode, done.stdout

    def test_nothing_is_left_out(self):
        self.assertEqual(self.run_on("OK"), (0, ""))

    def test_what_a_command_of_its_own_installs(self):
        code, text = self.run_on("skipped: doxygen was not found.", "test_x ... skipped 'no JAX'", "a_test.cpp:1: Skipped\nno GPU",
                                 "SKIPPED [1] tests/a_test.py:120: root may read every file")
        self.assertEqual(code, 0, text)
        self.assertIn("t0: doxygen was not found. (sh setup.sh docs; make test)", text)
        self.assertIn("t1: no JAX (TORCH_PYTHON=", text)
        self.assertIn("t2: no GPU (", text)
        self.assertIn("t3: root may read every file", text)

    def test_what_make_test_should_have_installed(self):
        for reason in ("/usr/bin/python3 has no NumPy", "the Python module is not built", "spin is not installed", "why?"):
            with self.subTest(reason):
                code, text = self.run_on("skipped: no browser", f"skipped: {reason}")
                self.assertEqual(code, 1, text)
                self.assertIn("not_run: 1 of these reasons", text)
                self.assertEqual(self.run_on(f"skipped: {reason}", all_tests="")[0], 0)
