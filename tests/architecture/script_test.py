"""tests/script.py runs the cases of a file and fails with them; a missing optional module is a reason to skip."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest  # noqa: F401: some of the files need it

CASES = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        self.assertTrue({})\n"
OF_PYTEST = "import pytest\ndef test_a():\n    assert {}\n"

with tempfile.TemporaryDirectory() as folder:
    for text, code in ((CASES.format(1), 0), (CASES.format(0), 1), (OF_PYTEST.format(1), 0), (OF_PYTEST.format(0), 1),
                       ("class TestA:\n    def test_a(self):\n        assert 0\n", 1),
                       (CASES.format(0) + 'if __name__ == "__main__":\n    unittest.main()\n', 1),
                       ("import sys\nsys.exit(3)\n", 3), ("import torch.nowhere\n", 77), ("import nowhere\n", 1), ("", 0)):
        file = Path(folder) / "a_test.py"
        file.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, "-B", Path(__file__).resolve().parents[1] / "script.py", file],
                              capture_output=True, text=True)
        assert done.returncode == code, f"{text}\nexit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
