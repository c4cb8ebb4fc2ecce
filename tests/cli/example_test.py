"""`ring-attention example`, and then `run` on what it made."""

import math
import os

import harness
import numpy as np

TEXT = b"the ring turns, the ring turns, and every query sees every key. "


class ExampleTest(harness.CommandTest):
    def setUp(self):
        super().setUp()
        with open(self.path("text.txt"), "wb") as file:
            file.write(TEXT)

    def refuse(self, *words, said):
        before = self.files_in()
        self.assert_refused(self.run_ranks(1, "example", *words, launcher=False), *said)
        self.assertEqual(self.files_in(), before)

    def test_then_run(self):
        """The arrays act out an induction head: a query looks where the same bytes stood before."""
        os.mkdir(self.path("in"))
        with open(self.path("in/sink.npy.part"), "wb"):  # which a killed `example --sink` leaves
            pass
        result = self.run_well(1, *"example --text text.txt --out in --dim 32".split(), launcher=False)
        self.assertIn("in: removed sink.npy.part", result.err)
        self.assertIn(f"the first {len(TEXT)} bytes of text.txt", result.out)
        self.assertEqual(self.files_in("in"), ["dout.npy", "k.npy", "q.npy", "v.npy"])
        tokens = len(TEXT)
        for name, heads in (("q", 4), ("k", 2), ("v", 2), ("dout", 4)):
            array = self.array(f"in/{name}.npy")
            self.assertEqual((array.shape, array.dtype), ((1, heads, tokens, 32), np.float32))
        words = "run --q in/q.npy --k in/k.npy --v in/v.npy --dout in/dout.npy --causal --check --out results"
        self.run_well(4, *words.split())

        # The second query head of the first KV head, at the end of the second "the ring turn": what comes next?
        out, values = self.array("results/out.npy")[0, 1], self.array("in/v.npy")[0, 0]
        here = TEXT.index(b"turns", TEXT.index(b"turns") + 1) + 3
        self.assertEqual(TEXT[here : here + 2], b"ns")
        scores = {byte: out[here] @ values[TEXT.index(byte)] for byte in TEXT_BYTES}
        self.assertEqual(max(scores, key=scores.get), b"s")
        dout = self.array("in/dout.npy")[0, 0]  # less of this would be a better guess: the byte after each one
        self.assertEqual(dout[here].tolist(), (-values[TEXT.index(b"s")]).tolist())

    def test_with_a_bias_and_sinks(self):
        self.run_well(1, *"example --text text.txt --out in --dim 8 --bias --sink".split(), launcher=False)
        tokens = len(TEXT)
        self.assertEqual(self.files_in("in"), ["bias.npy", "dout.npy", "k.npy", "q.npy", "sink.npy", "v.npy"])
        bias, sink = self.array("in/bias.npy"), self.array("in/sink.npy")
        self.assertEqual((bias.shape, bias.dtype, sink.dtype), ((tokens, tokens), np.float32, np.float32))
        self.assertAlmostEqual(bias[5, 2], -math.log(4), 6)
        self.assertEqual(sink.tolist(), [1.0] * 4)
        words = "run --q in/q.npy --k in/k.npy --v in/v.npy --dout in/dout.npy --bias in/bias.npy --sink in/sink.npy"
        self.run_well(3, *words.split(), *"--dropout 0.1 --causal --check --out results".split())
        self.assertIn("dbias.npy", self.files_in("results"))

    def test_on_several_ranks_it_is_made_once(self):
        result = self.run_well(3, *"example --text text.txt --out in --tokens 10 --dim 4".split())
        self.assertEqual(result.out.count("\n"), 1)
        self.assertEqual(self.array("in/v.npy").shape, (1, 2, 10, 4))

    def test_the_same_text_gives_the_same_files(self):
        for out in ("one", "two"):
            self.run_well(1, *f"example --text text.txt --out {out} --dim 4".split(), launcher=False)
        for name in ("q.npy", "k.npy", "v.npy", "dout.npy"):
            one, two = (harness.read_bytes(self.path(f"{out}/{name}")) for out in ("one", "two"))
            self.assertEqual(one, two)

    def test_bad_input(self):
        self.refuse("--text", "missing.txt", said=("missing.txt", "--text"))
        self.refuse(said=("README.md", "--text"))  # the default, where it is not
        self.refuse("--text", ".", said=("--text",))
        open(self.path("empty.txt"), "w", encoding="utf-8").close()
        self.refuse("--text", "empty.txt", said=("empty.txt", "empty"))
        self.refuse("--text", "text.txt", "--out", "text.txt", said=("--out text.txt",))
        self.refuse("--text", "text.txt", "--kv-heads", "9", said=("--kv-heads", "to 4"))
        self.refuse("--text", "text.txt", "--dim", "0", said=("--dim", "from 1"))
        os.makedirs(self.path("in/q.npy/deeper"))
        self.refuse("--text", "text.txt", "--out", "in", said=("in/q.npy", "directory"))

    def test_too_large(self):
        self.refuse(*"--text text.txt --out in --dim 1000000000000".split(), said=("--dim", "to 4096"))


TEXT_BYTES = {bytes([byte]) for byte in TEXT}
