"""`ring-attention train`: what it reports, its checkpoints on every mesh, killed jobs, full disks, what it refuses."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

import harness
import numpy as np

# A step of the bandit with its 514 tokens is fast; 4 query heads and 2 KV heads are shared by up to 4 ranks.
MODEL = tuple(
    "--task bandit --seq 16 --width 16 --heads 4 --kv-heads 2 --dim 4 --ffn 24 --evaluation-tokens 2048".split()
)
DOUBLE = (*MODEL, "--dtype", "float64")
ARRAYS = ("parameters.npy", "first_moment.npy", "second_moment.npy")
FILES = sorted((*ARRAYS, "checkpoint.json"))


class TrainCase(harness.CommandTest):
    def train(self, ranks, *words, **job_words):
        """Trains without text; returns the report."""
        return json.loads(self.run_well(ranks, "train", *words, "--json", **job_words).out)

    def checkpoint(self, name, steps):
        """The files of the one checkpoint in a directory, {name: bytes}."""
        self.assertEqual(self.files_in(name), [f"step_{steps}/{file}" for file in FILES])
        return {file: harness.read_bytes(self.path(f"{name}/step_{steps}/{file}")) for file in FILES}

    def assert_same(self, got, want):
        """Of {name: bytes}; unittest's own comparison would draw the difference of the bytes for minutes."""
        self.assertEqual([name for name in {**got, **want} if got.get(name) != want.get(name)], [])

    def assert_near(self, a, b, tolerance):
        """Each array of two checkpoints."""
        for file in ARRAYS:
            got, want = (self.array(f"{name}/{file}").astype(float) for name in (a, b))
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            self.assertTrue(error <= tolerance, f"{file} differs by {error}")

    def steps_in(self, name):
        """The steps of the last checkpoint in a directory, 0 without one."""
        if not os.path.isdir(self.path(name)):
            return 0
        found = [entry for entry in os.listdir(self.path(name)) if entry.startswith("step_")]
        return max((int(entry[5:]) for entry in found), default=0)

    def kill(self, job, ranks=2):
        """All ranks, or one of them."""
        for pid in list(job.processes(program_only=True))[:ranks]:
            harness.send(pid, signal.SIGKILL)
        return job.wait()

    def train_until(self, steps, ranks, *words):
        """Trains, and kills the job when it has saved so many steps."""
        name = words[words.index("--checkpoint") + 1]
        with harness.Job(ranks, "train", *words, "--checkpoint-every", 2, cwd=self.folder) as job:
            job.until(lambda: self.steps_in(name) >= steps, f"{steps} steps were saved")
            self.kill(job)

    def check_another_mesh(self, ranks, *mesh, steps=18):
        """A training on two ranks, killed and resumed on others, is near to the undisturbed one."""
        words = (*DOUBLE, "--steps", steps)
        self.train(2, *words, "--checkpoint", "whole")
        self.train_until(steps // 3, 2, *words, "--checkpoint", "part")
        report = self.train(ranks, *words, "--checkpoint", "part", "--trace", "trace.json", *mesh)
        self.assertGreaterEqual(report["first_step"], steps // 3)
        self.assertEqual(report["first_step"] % 2, 0, "--checkpoint-every 2 saves after an even number of steps")
        self.assertAlmostEqual(report["tokens_per_second"] * report["train_seconds"], 4096 * (steps - report["first_step"]), 3)
        self.assertEqual(report["resumed_from"], f"part/step_{report['first_step']}")
        self.assertEqual([point["step"] for point in report["curve"]], list(range(steps)))
        with open(self.path("trace.json"), encoding="utf-8") as file:
            self.assertTrue(any(event["ph"] == "B" for event in json.load(file)), "the second of its steps")
        self.checkpoint("part", steps)
        self.assert_near(f"part/step_{steps}", f"whole/step_{steps}", 1e-9)

    def check_killed(self, kills, steps):
        """Killed at random moments and started again: the bits of an undisturbed training, curve included."""
        seed = os.environ.get("RING_ATTENTION_TEST_SEED", "1")
        print(f"RING_ATTENTION_TEST_SEED={seed}", flush=True)
        source = random.Random(seed)
        words = (*MODEL, "--steps", steps, "--checkpoint-every", 3)
        begin = time.monotonic()
        self.train(2, *words, "--checkpoint", "whole")
        seconds = time.monotonic() - begin
        struck = []
        while len(struck) < kills:
            with harness.Job(2, "train", *words, "--checkpoint", "part", "--json", cwd=self.folder) as job:
                time.sleep(source.uniform(0.1, 1) * seconds)
                result = self.kill(job, source.choice((1, 2)))
            self.assertEqual(result.survivors, [], str(result))
            if result.code != 0:
                struck.append(self.steps_in("part"))
            else:
                shutil.rmtree(self.path("part"))
        print(f"killed with these steps saved: {struck}", flush=True)
        self.train(2, *words, "--checkpoint", "part")
        self.assert_same(self.checkpoint("part", steps), self.checkpoint("whole", steps))


class TrainTest(TrainCase):
    # ---- what it reports

    def test_json(self):
        report = self.train(4, *MODEL[:2], *MODEL[4:], "--seq", 64, "--steps", 12, "--tensor", 2, "--seed", 3)
        self.assertEqual(report["mesh"], {"tensor": 2, "ulysses": 1, "ring": 2, "data": 1})
        self.assertEqual(report["training"]["stages"], [{"length": 64, "sequences": 64, "steps": 12, "arms": 16}])
        self.assertEqual((report["training"]["task"], report["training"]["seed"]), ("bandit", 3))
        self.assertEqual([point["step"] for point in report["curve"]], list(range(12)))
        for point in report["curve"]:
            self.assertEqual(point["length"], 64)
            self.assertTrue(0 < point["loss"] < 20)
            self.assertTrue(0 <= point["accuracy"] <= 1)
        self.assertEqual((report["first_step"], report["checkpoint"], report["fsdp"]), (0, "", False))
        self.assertEqual([row["length"] for row in report["evaluations"]], [64, 256])
        for row in report["evaluations"]:
            self.assertEqual((row["labels"], row["window"]), (2048 // 16, row["length"] // 4))
            self.assertTrue(row["window_possible"] < row["possible"] <= 1)
        # embedding and its norm; norms, wq, wk, wv, wo, w1, w2
        parameters = 514 * 16 + 16 + 2 * 16 + 16 * 16 + 2 * 16 * 8 + 16 * 16 + 2 * 16 * 24
        self.assertEqual(report["parameters"], parameters)

    def test_the_curriculum_and_its_text(self):
        out = self.run_well(2, "train", "--steps", 4, "--seq", 300, "--width", 16, "--dim", 8).out
        for words in ("on 2 ranks", "tensor 1, ulysses 1, ring 2, data 1; ring takes the ranks that are left",
                      "line retrieval, seed 1", "     3     300", "tokens/s", "window", "possible"):
            self.assertIn(words, out)
        rows = [[*map(float, line.split())] for line in out.partition("  length  labels ")[2].splitlines()[1:]]
        self.assertTrue(all(possible == 1 > in_window for *_, possible, _, _, in_window in rows), rows)

    def test_the_seed_and_the_sequences_of_each_step(self):
        """A rate of 1e-300 changes no weight: a step's loss differs from the next one's because its sequences do."""
        losses, weights = set(), []
        for seed in (1, 2):
            words = ("--rate", "1e-300", "--steps", 3, "--seed", seed, "--checkpoint", f"seed{seed}")
            losses |= {point["loss"] for point in self.train(1, *MODEL, *words, launcher=False)["curve"]}
            weights.append(self.array(f"seed{seed}/step_3/parameters.npy"))
        self.assertEqual(len(losses), 6)
        self.assertGreater(np.mean(weights[0] != weights[1]), 0.9)

    # ---- checkpoints

    def test_every_mesh_writes_the_same_numbers(self):
        """A rate of 1e-300 changes nothing: parameters are those that the seed gives, each in its place."""
        want = None
        for number, (ranks, words) in enumerate((
            (1, ()), (4, ("--tensor", 4)), (3, ("--fsdp",)),
            (4, ("--tensor", 2, "--data", 2, "--fsdp")), (4, ("--ulysses", 2, "--ring", 2)),
        )):
            with self.subTest(ranks=ranks, words=words):
                self.train(ranks, *DOUBLE, "--rate", "1e-300", "--steps", 1, "--checkpoint", f"mesh{number}", *words)
                found = self.checkpoint(f"mesh{number}", 1)
                want = want or found
                self.assertEqual(found["parameters.npy"], want["parameters.npy"])
                self.assert_near(f"mesh{number}/step_1", "mesh0/step_1", 1e-11)
        matrices = json.loads(want["checkpoint.json"])["matrices"]
        self.assertEqual(matrices[0], {"name": "layer 0 norm_1", "begin": 0, "shape": [1, 16]})
        self.assertEqual(matrices[-1]["name"], "norm")
        self.assertEqual(self.array("mesh0/step_1/parameters.npy").shape, (matrices[-1]["begin"] + 16,))

    def test_fsdp_writes_the_same_bits(self):
        for name, words in (("plain", ()), ("fsdp", ("--fsdp",))):
            self.train(4, *MODEL, "--tensor", 2, "--data", 2, "--steps", 3, "--checkpoint", name, *words)
        self.assert_same(self.checkpoint("plain", 3), self.checkpoint("fsdp", 3))

    def test_another_mesh_resumes(self):
        self.check_another_mesh(4, "--tensor", 2, "--data", 2, "--fsdp", steps=12)

    def test_says_where_it_resumes(self):
        words = ("train", *MODEL, "--steps", 10, "--checkpoint", "a/deep/one")
        self.assertIn("saved   a/deep/one/step_10\n", self.run_well(2, *words).out)
        before = self.checkpoint("a/deep/one", 10)
        os.mkdir(self.path("a/deep/one/step_2"))  # a kill may leave an older one
        out = self.run_well(2, *words).out
        self.assertIn("  resumes at step 10, from a/deep/one/step_10\n", out)
        self.assert_same(self.checkpoint("a/deep/one", 10), before)

    @unittest.skipUnless(harness.HAS_PROC, "ranks are found through /proc, which is not here")
    def test_killed_at_random_moments(self):
        self.check_killed(2, 20)

    # ---- what it refuses

    def refuse(self, ranks, words, said, **job_words):
        """One rank needs no launcher: it is quicker where the number of ranks does not matter."""
        job_words.setdefault("launcher", ranks > 1)
        before = {name: harness.read_bytes(self.path(name)) for name in self.files_in()}
        result = self.run_ranks(ranks, "train", *words, "--json", **job_words)
        self.assert_refused(result, *said, limit=20 * harness.SLOWNESS)
        self.assert_same({name: harness.read_bytes(self.path(name)) for name in self.files_in()}, before)

    def test_damaged_checkpoints(self):
        words = (*MODEL, "--steps", 2, "--checkpoint", "run")
        self.train(2, *words)
        whole = self.checkpoint("run", 2)
        remedy = "remove run/step_2 to begin anew, or give another --checkpoint"

        def damage(file, content, *said, ranks=1):
            path = f"run/step_2/{file}"
            with self.subTest(file=file, said=said):
                os.remove(self.path(path))
                if content is not None:
                    self.write(path, content)
                self.refuse(ranks, words, (f"run/step_2/{file}: ", *said))
                self.write(path, whole[file])

        for file in ARRAYS:
            array = whole[file]
            damage(file, array[:-4], f"has {len(array) - 4} bytes where the model has {len(array)}", remedy, ranks=2)
        damage(file, b"", "has 0 bytes", remedy)
        damage(file, None, "No such file", remedy)
        damage("parameters.npy", b"x" * len(array), "is not an array of this model", remedy)
        text = whole["checkpoint.json"]
        damage("checkpoint.json", None, "No such file", remedy, ranks=2)
        for content in (text[: len(text) // 2], b"", b"{}"):
            damage("checkpoint.json", content, "is truncated, or is not a checkpoint of `train`", remedy)
        damage("checkpoint.json", text.replace(b"train, 1", b"train, 9"), "is not a checkpoint of `train`", remedy)
        for old, new, said in (
            (b'"steps": 2,\n "matrices"', b'"steps": 2.9,\n "matrices"', "steps is 2.9: it must be a whole number"),
            (b'"steps": 2,\n "matrices"', b'"steps": 18446744073709551618,\n "matrices"', "steps is 1.8"),
            (b'"step": 1', b'"step": true', "step is boolean"),
            (b'"loss": ', b'"loss": "much", "not": ', "loss is string"),
            (b'"begin": 16', b'"begin": 32', "matrices 1 begin is 32 there and 16 here"),
            (b'"name": "norm"', b'"name": "mean"', 'matrices 9 name is "mean" there and "norm" here'),
            (b'"curve"', b'"curves"', "is truncated, or is not a checkpoint of `train`"),
        ):
            self.assertIn(old, text)
            damage("checkpoint.json", text.replace(old, new, 1), said, remedy)
        self.train(2, *words)

    def test_checkpoints_of_another_training(self):
        words = (*MODEL, "--steps", 2, "--checkpoint", "run")
        self.train(2, *words)
        for other, said in (
            (("--seed", 7), "seed is 1 there and 7 here"),
            (("--rate", 0.5), "rate is 0.01 there and 0.5 here"),
            (("--dtype", "float64"), 'dtype is "float32" there and "float64" here'),
            (("--layers", 2), "model layers is 1 there and 2 here"),
        ):
            self.refuse(1, (*words, *other), ("run/step_2: is of another training: " + said, "another --checkpoint"))
        lines = ("--task", "lines", *MODEL[2:], "--steps", 2, "--checkpoint", "run")
        self.refuse(2, lines, ('task is "bandit" there and "lines" here',))
        steps = (*MODEL, "--steps", 3, "--checkpoint", "run")
        self.refuse(1, steps, ("stages 0 steps is 2 there and 3 here",))

    def test_two_trainings_in_one_directory(self):
        words = ("train", *MODEL, "--checkpoint", "run")
        endless = ("--steps", 1_000_000, "--checkpoint-every", 1_000_000)
        with harness.Job(1, *words, *endless, launcher=False, cwd=self.folder) as first:
            first.until(lambda: os.path.isdir(self.path("run/step.part")), "it had its directory")
            self.assert_refused(self.run_ranks(1, *words, "--steps", 2, launcher=False),
                                "--checkpoint run: another training writes there now", "give another", limit=20)
            self.assertFalse(first.ended())
        self.run_well(1, *words, "--steps", 2, launcher=False)

    def test_a_directory_that_cannot_be(self):
        self.write("file", "in the way\n")
        for name in ("file", "file/deeper", "/proc/self/run"):
            self.refuse(2, (*MODEL, "--steps", 2, "--checkpoint", name), ("--checkpoint " + name,))

    def test_a_loss_that_is_not_finite(self):
        words = (*MODEL, "--rate", "1e30", "--steps", 5)
        self.refuse(2, words, ("step ", "not finite", "smaller learning rate"))
        result = self.run_ranks(2, "train", *words, "--checkpoint", "run", "--checkpoint-every", 1, "--json")
        steps = self.steps_in("run")
        self.assert_refused(result, f"step {steps}: ", "not finite", f"the last checkpoint, run/step_{steps}, stays")
        self.checkpoint("run", steps)

    def test_meshes_that_cannot_be(self):
        words = ("--heads", 2)
        for ranks, mesh, said in (
            (3, ("--tensor", 3), "mesh tensor 3, ulysses 1, ring 1, data 1: 2 query heads and 2 KV heads cannot be shared like "
                                 "this: use tensor x ulysses = 1 x 1"),
            (2, ("--ring", 2, "--data", 2), "it has 4 ranks, the job has 2: use four numbers whose product is 2"),
            (2, ("--data", 2), "--seq 4096: 1 sequence a step for a data axis of 2: use a data axis of at most 1, or sequences of at "
                               "most 2048 tokens"),
        ):
            with self.subTest(ranks=ranks, mesh=mesh):
                self.refuse(ranks, (*words, *mesh), (said,))

    def test_flags_that_cannot_be(self):
        for words, said in (
            (("--seq", 3), ("--seq 3", "4 or more")),
            (("--seq", 40000), ("--seq 40000", "shorter")),
            (("--task", "bandit", "--seq", 65), ("--seq 65", "multiple of 16")),
            (("--task", "chess"), ("--task", "lines,bandit")),
            (("--heads", 3, "--kv-heads", 2), ("KV heads", "divides")),
            (("--width", 15), ("even",)),
            (("--rate", 0), ("--rate", "above 0")),
            (("--rate", "nan"), ("--rate", "finite")),
            (("--steps", 0), ("--steps", "from 1")),
            (("--checkpoint-every", 5), ("--checkpoint-every", "--checkpoint")),
            (("--ring", 0), ("--ring", "from 1")),
            (("--timeout", 0), ("--timeout", "above 0")),
            (("--expect-ranks", 3), ("--expect-ranks 3", "1 rank")),
            (("--width", 65536, "--ffn", 1048576, "--layers", 4096), ("memory",)),
        ):
            with self.subTest(words=words):
                self.refuse(1, words, said)


class FullDiskTest(TrainCase):
    """Two checkpoints do not fit: the first stays."""

    WORDS = ("train", "--steps", 4, "--checkpoint", "disk/run", "--checkpoint-every", 1, "--json")

    def refuse(self, ranks, words, said, **job_words):
        result = self.run_ranks(ranks, *self.WORDS, *words, **job_words)
        self.assert_refused(result, *said, "check the directory, and the space on the disk", limit=20 * harness.SLOWNESS)

    def test_a_full_disk(self):
        os.mkdir(self.path("disk"))
        size = 3 * 10_000 * 4 * 3 // 2  # bytes: about one and a half checkpoints
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.path("disk")],
                                 stderr=subprocess.PIPE, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no small disk can be made: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", self.path("disk")], check=True)
        self.refuse(2, MODEL, ("No space left", "; the last checkpoint, disk/run/step_1, stays"))
        self.checkpoint("disk/run", 1)

    def test_a_limit_of_the_size_of_files(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (6_000_000, 6_000_000))  # MPI's own files are smaller

        self.refuse(1, ("--seq", 16, "--width", 128, "--dtype", "float64"), ("File too large", "; there is no checkpoint"),
                    launcher=False, preexec_fn=limit, restore_signals=False)
        self.assertEqual(self.files_in("disk/run"), [])


class LongTest(TrainCase):
    """Slow: run with the argument `long`."""

    def test_killed_twenty_times(self):
        self.check_killed(20, 40)

    def test_one_rank_resumes(self):
        self.check_another_mesh(1)

    def test_a_ring_of_three_resumes(self):
        self.check_another_mesh(3)

    def test_the_recipe_without_a_flag(self):
        report = self.train(2, limit=600 * harness.SLOWNESS)
        self.assertEqual(len(report["curve"]), 400)
        print(json.dumps(report["evaluations"]), f"{report['train_seconds']:.1f} s", flush=True)
        for row in report["evaluations"]:
            self.assertTrue(row["accuracy"] >= (0.99 if row["length"] <= 4096 else 0.95), str(row))
            self.assertTrue(abs(row["window_accuracy"] - row["window_possible"]) <= 0.03, str(row))


def load_tests(loader, *_):
    """`train_test.py long` runs the long tests, without it the others."""
    cases = (LongTest,) if harness.LONG else (TrainTest, FullDiskTest)
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)
