"""--same-bits: the files are the same bytes for every number of ranks, placement, partition, transport and number of threads."""

import hashlib
import json

import harness
import npy
from attention import random_values

TILE = ("--same-bits", "--tile", "16")


class SameBitsTest(harness.CommandTest):
    def digest(self, ranks, *words):
        """Of the arrays that a job writes."""
        self.run_well(ranks, *words, "--out", "results")
        digest = hashlib.sha256()
        for name in sorted(self.files_in("results")):
            if name.endswith(".npy"):
                with open(self.path(f"results/{name}"), "rb") as file:
                    digest.update(file.read())
        return digest.hexdigest()

    def test_run(self):
        problem = ("run", "--random", "1,4,300,8", "--kv-heads", "2", "--causal", "--backward", *TILE)
        one = self.digest(1, *problem, "--check")
        teams = (
            (3, "--placement", "zigzag", "--threads", "2"),
            (4, "--parallel", "ulysses"),  # two ranks have one K,V head
            (2, "--placement", "striped", "--transport", "odd-even"),
            (4, "--parallel", "hybrid", "--ulysses", "2", "--placement", "zigzag"),
            (3, "--parallel", "all-gather"),
            *((ranks, "--placement", "zigzag") for ranks in (5, 6, 7, 8, 11, 13)),
        )
        for ranks, *team in harness.first(5, *teams):
            with self.subTest(ranks=ranks, team=team):
                self.assertEqual(self.digest(ranks, *problem, *team), one)
        without = [word for word in problem if word not in TILE]
        self.assertNotEqual(self.digest(2, *without), self.digest(3, *without))

    def test_scores(self):
        npy.write(self.path("sink.npy"), (4,), random_values((4,), 1), "<f4")
        npy.write(self.path("bias.npy"), (4, 90, 90), random_values((4, 90, 90), 2), "<f4")
        problem = ("run", "--random", "2,4,90,8", "--kv-heads", "2", "--backward", "--sink", "sink.npy", "--bias", "bias.npy",
                   "--dropout", "0.2", "--alibi", *TILE)
        one = self.digest(1, *problem, "--check")
        for ranks, *team in harness.first(2, (3, "--placement", "zigzag"), (4, "--parallel", "ulysses"), (5, "--placement", "striped")):
            self.assertEqual(self.digest(ranks, *problem, *team), one)

    def test_a_decoded_row_is_the_row_of_a_forward(self):
        problem = ("--random", "1,4,150,8", "--kv-heads", "2", "--window", "60,0", *TILE)
        one = self.digest(2, "run", *problem)
        for ranks, placement in harness.first(2, (3, "zigzag"), (2, "striped"), (1, "contiguous"), (4, "striped")):
            words = ("--placement", placement, "--prompt", "40")
            self.assertEqual(self.digest(ranks, "decode", *problem, *words), one)

    def test_as_many_tiles_as_a_narrow_row_takes_and_a_sink(self):
        npy.write(self.path("sink.npy"), (1,), [0.5], "<f4")
        for tokens in (1022, 1023, 1024):
            problem = ("run", "--random", f"1,1,{tokens},4", "--causal", "--sink", "sink.npy", "--same-bits", "--tile", "1")
            self.assertEqual(self.digest(2, *problem, "--check"), self.digest(1, *problem))

    def test_nan_is_nan_on_any_number_of_ranks(self):
        arrays = {name: random_values((1, 60, 4), seed) for seed, name in enumerate("qkv")}
        for name, at, value in (("q", 30 * 4, "nan"), ("k", 16 * 4, "nan"), ("v", 20 * 4 + 1, "inf")):
            for array, values in arrays.items():
                values = list(values)
                values[at] = float(value) if array == name else values[at]
                npy.write(self.path(array + ".npy"), (1, 60, 4), values, "<f4")
            words = ("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--causal", *TILE)
            one = self.digest(1, *words)
            self.assertEqual(self.digest(3, *words), one)
            _, _, out = self.array("results/out.npy")
            row = {"q": 30, "k": 16, "v": 20}[name]
            self.assertTrue(all(x != x for x in out[row * 4:row * 4 + 4]), (name, out[row * 4:row * 4 + 4]))

    def test_training_ends_with_the_same_weights(self):
        """After 50 steps in the long test, and the curve of the loss, which has all its digits in the checkpoint."""
        steps = 50 if harness.LONG else 12
        model = ("--task", "bandit", "--seq", 128, "--steps", steps, "--width", 16, "--heads", 2, "--kv-heads", 1, "--dim", 8,
                 "--ffn", 24, "--evaluation-tokens", 128)

        def train(ranks, *words, same_bits=("--same-bits", "--tile", 16)):
            name = f"{ranks} " + " ".join(map(str, words))
            self.run_well(ranks, "train", *model, *words, *same_bits, "--checkpoint", name)
            digest = hashlib.sha256()
            for array in ("parameters", "first_moment", "second_moment"):
                with open(self.path(f"{name}/step_{steps}/{array}.npy"), "rb") as file:
                    digest.update(file.read())
            with open(self.path(f"{name}/step_{steps}/checkpoint.json")) as file:
                return digest.hexdigest(), json.load(file)["curve"]

        one = train(1)
        self.assertEqual(train(3, "--trace", "trace.json"), one)
        self.refused_to_resume("1 ", model)
        for ranks, *words in harness.first(3, (2,), (3, "--threads", 2), (4, "--ring", 2), (4,), (2, "--ring", 1)):
            self.assertEqual(train(ranks, *words), one, (ranks, words))
        self.assertNotEqual(train(2, "--threads", 1, same_bits=())[0], train(3, "--threads", 1, same_bits=())[0])

    def refused_to_resume(self, checkpoint, model):
        for words in (("--same-bits", "--tile", 8), ()):
            result = self.run_ranks(1, "train", *model, *words, "--checkpoint", checkpoint)
            self.assert_refused(result, "is of another training: same_bits is 16 there")

    def test_a_trace_changes_nothing(self):
        problem = ("run", "--random", "1,2,100,8", "--causal", "--backward", *TILE)
        self.assertEqual(self.digest(3, *problem, "--trace", "trace.json"), self.digest(2, *problem))

    def test_the_report_says_it(self):
        result = self.run_well(2, "run", "--random", "1,2,40,8", "--check", *TILE)
        self.assertIn("the same bits on any number of ranks (tile: 16 tokens)", result.out)

    def test_refused(self):
        for name in "qkv":
            npy.write(self.path(name + ".npy"), (1, 8, 4), random_values((1, 8, 4), 1), "<f8")
        files = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "results")
        npy.write(self.path("bias.npy"), (8, 8), random_values((8, 8), 1), "<f4")
        for words, message in (
            (("run", *files, "--same-bits"), "--same-bits goes with float32"),
            (("decode", *files, "--same-bits"), "--same-bits goes with float32"),
            (("run", "--random", "1,1,8,4", "--check", "--device", "cuda", "--same-bits"), "--same-bits goes with --device cpu"),
            (("run", "--random", "1,1,8,4", "--check", "--tile", "8"), "--tile goes with --same-bits or --engine readable"),
            (("decode", "--random", "1,1,8,4", "--check", "--tile", "8"), "--tile goes with --same-bits or --engine readable"),
            (("run", "--random", "1,1,8,4", "--check", "--same-bits", "--engine", "readable"), "the readable engines have no exact"),
            (("bench", "--seq", "64", "--tile", "8"), "--tile requires --same-bits"),
            (("train", "--steps", "1", "--tile", "8"), "--tile requires --same-bits"),
            (("run", "--random", "1,2,8,4", "--backward", "--check", "--parallel", "ulysses", "--bias", "bias.npy", "--same-bits"),
             "broadcasts over heads"),
            (("train", "--dtype", "float64", "--same-bits"), "--same-bits goes with float32"),
            (("train", "--tensor", "2", "--same-bits"), "use ranks along ring and data only"),
            (("train", "--fsdp", "--same-bits"), "without --fsdp"),
            (("bench", "--seq", "64", "--dtype", "float64", "--same-bits"), "--same-bits goes with float32"),
        ):
            self.assert_refused(self.run_ranks(2, *words), message)


if __name__ == "__main__":
    harness.main()
