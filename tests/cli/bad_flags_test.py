"""Flags that cannot be, and the help: one line that names the flag and the remedy, exit code 2, nothing written."""

import harness

RANDOM = ("--random", "1,2,12,4")
FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")

# What is given after `run`, and what the line must say.
BAD_FLAGS = (
    (("--bogus",), ("--bogus", "run --help")),
    (("--bogus=3",), ("--bogus", "run --help")),
    (("-x",), ("-x", "run --help")),
    ((*RANDOM, "stray"), ("stray", "run --help")),
    ((), ("--q", "--random", "run --help")),
    (("--q", "q.npy"), ("--q, --k and --v", "all three")),
    (("--k", "q.npy", "--v", "v.npy"), ("--q, --k and --v", "all three")),
    ((*RANDOM, "--q", "q.npy"), ("--q excludes --random",)),
    ((*FILES, *RANDOM), ("--q excludes --random",)),
    ((*RANDOM, "--seed", "1", "--seed", "2"), ("--seed", "1 required but received")),
    ((*RANDOM, "--causal", "--causal"), ("--causal", "1 required but received")),
    ((*RANDOM, "--out", "results", "--out", "results"), ("--out", "1 required but received")),
    ((*RANDOM, *RANDOM), ("--random", "1 required but received")),
    ((*RANDOM, "--scale"), ("--scale", "1 required", "missing")),
    ((*RANDOM, "--out"), ("--out", "1 required", "missing")),
    ((*RANDOM, "--seed", "--causal"), ("--seed", "needs a value")),
    (("--random",), ("--random", "1 required B,H,S,D missing")),
    ((*FILES[:4], "--v"), ("--v", "1 required", "missing")),
    ((*RANDOM, "--causal=perhaps"), ("causal", "disallowed", "run --help")),
    ((*RANDOM, "--scale", "nan"), ("--scale", "finite")),
    ((*RANDOM, "--scale", "inf"), ("--scale", "finite")),
    ((*RANDOM, "--scale", "1e999"), ("--scale",)),
    ((*RANDOM, "--scale", "half"), ("--scale", "half", "number")),
    ((*RANDOM, "--scale", ""), ("--scale",)),
    *[((*RANDOM, "--softcap", cap), ("--softcap", "positive")) for cap in ("0", "-1")],
    *[((*RANDOM, "--softcap", cap), ("--softcap is " + cap, "1.7e+38")) for cap in ("1e+39", "1e-300", "1e-46")],
    *[((*RANDOM, "--scale=" + scale), ("--scale is " + scale, "1.7e+38")) for scale in ("1e+39", "-1e+39")],
    ((*RANDOM, "--softcap", "nan"), ("--softcap", "finite")),
    ((*RANDOM, "--timeout", "0"), ("--timeout", "above 0")),
    ((*RANDOM, "--timeout", "-1"), ("--timeout", "above 0")),
    ((*RANDOM, "--timeout", "nan"), ("--timeout", "finite")),
    ((*RANDOM, "--timeout", "inf"), ("--timeout", "finite")),
    ((*RANDOM, "--tile", "0"), ("--tile", "from 1")),
    ((*RANDOM, "--tile", "-64"), ("--tile", "from 1")),
    ((*RANDOM, "--tile", "1.5"), ("--tile", "1.5", "whole number")),
    ((*RANDOM, "--tile", "99999999999999999999"), ("--tile", "whole number")),
    ((*RANDOM, "--tile", "32"), ("--tile", "--engine readable")),
    ((*RANDOM, "--seed", "-1"), ("--seed", "from 0")),
    ((*RANDOM, "--kv-heads", "-1"), ("--kv-heads", "from 0")),
    ((*RANDOM, "--kv-heads", "3"), ("--kv-heads", "divide")),
    ((*FILES, "--kv-heads", "1", "--out", "results"), ("--kv-heads", "--random")),
    ((*FILES, "--seed", "5", "--out", "results"), ("--seed", "--random")),
    ((*RANDOM, "--q-offset", "3"), ("--q-offset", "--causal")),
    ((*RANDOM, "--dout", "dout.npy"), ("--dout excludes --random",)),
    (("--dout", "dout.npy"), ("--q",)),
    ((*FILES, "--backward", "--out", "results"), ("--backward", "--random")),
    ((*RANDOM, "--window", "3"), ("--window", "LEFT,RIGHT")),
    ((*RANDOM, "--window", "9223372036854775807,0"), ("--window", "to 9007199254740992")),
    ((*RANDOM, "--window", "0,9007199254740993"), ("--window", "to 9007199254740992")),
    ((*RANDOM, "--window", "3,-2"), ("--window", "LEFT,RIGHT", "from -1")),
    ((*RANDOM, "--placement", "diagonal"), ("--placement", "zigzag")),
    ((*RANDOM, "--transport", "pigeon"), ("--transport", "overlapped")),
    ((*RANDOM, "--transport", "staged"), ("--transport staged", "--device cuda")),
    ((*RANDOM, "--documents"), ("--documents", "1 required", "missing")),
    ((*RANDOM, "--prefix", "4"), ("--prefix", "--causal")),
    ((*RANDOM, "--causal", "--sink-tokens", "4"), ("--sink-tokens", "--window")),
    ((*RANDOM, "--causal", "--prefix", "0"), ("--prefix", "from 1")),
    ((*RANDOM, "--causal", "--prefix", "13"), ("prefix", "0:13", "12 keys")),
    *[((*RANDOM, "--causal", "--blocks", text), ("--blocks", text, "BEGIN:END"))
      for text in ("1", "1:", ":2", "a:b", "1:2,", ",1:2", "1:2;3:4", "-1:2", "1: 2", "1:99999999999999999999")],
    ((*RANDOM, "--causal", "--blocks", "0:4,3:6"), ("blocks", "3:6 begins before 4")),
    ((*RANDOM, "--causal", "--blocks", "5:4"), ("blocks", "5:4")),
    ((*RANDOM, "--causal", "--blocks", "3:6", "--prefix", "4"), ("prefix", "3:6 begins before 4")),
    ((*RANDOM, "--window", "1,0", "--global-tokens", "0:1,2:3,4:5"), ("global tokens", "query 11", "four intervals")),
    ((*RANDOM, "--chunk", "0"), ("--chunk", "from 1")),
    ((*RANDOM, "--causal", "--intervals", "a.npy", "--prefix", "4"), ("--intervals", "--prefix")),
    ((*RANDOM, "--causal", "--q-offset", "99999999999999999999"), ("--q-offset", "whole number")),
    ((*RANDOM, "--causal", "--q-offset", "9223372036854775807"), ("--q-offset", "to 9007199254740992")),
    ((*RANDOM, "--causal", "--q-offset", "-9223372036854775808"), ("--q-offset", "from -9007199254740992")),
    ((*RANDOM, "--progress", "maybe"), ("--progress", "maybe", "always")),
    ((*RANDOM, "--expect-ranks", "9"), ("--expect-ranks", "9", "rank")),
    ((*RANDOM, "--expect-ranks", "-1"), ("--expect-ranks", "from 0")),
    (FILES, ("--out", "--check")),
    (("--random", "1,2,12"), ("--random", "1,2,12", "B,H,S,D")),
    (("--random", "1,2,12,4,5"), ("--random", "B,H,S,D")),
    (("--random", "1,2,12,"), ("--random", "B,H,S,D")),
    (("--random", ",2,12,4"), ("--random", "B,H,S,D")),
    (("--random", "1,,12,4"), ("--random", "B,H,S,D")),
    (("--random", "1,2,12,x"), ("--random", "1,2,12,x", "B,H,S,D")),
    (("--random", "1,2,12,4.5"), ("--random", "B,H,S,D")),
    (("--random", "1;2;12;4"), ("--random", "B,H,S,D")),
    (("--random", "many"), ("--random", "many", "B,H,S,D")),
    (("--random", ""), ("--random",)),
    (("--random", "1,2,0,4"), ("--random", "from 1")),
    (("--random", "1,2,12,0"), ("--random", "from 1")),
    (("--random", "0,0,0,0"), ("--random", "from 1")),
    (("--random", "1,2,-12,4"), ("--random", "from 1")),
    (("--random", "1,2,99999999999999999999,4"), ("--random", "B,H,S,D")),
    (("--random", "4294967296,4294967296,1,1"), ("--random", "elements")),
    (("--random", "1,4294967296,1,1"), ("--random", "2^31 - 1")),
    (("--random", "3000000000,3000000000,3000000000,3"), ("--random", "elements")),
)


class BadFlagsTest(harness.CommandTest):
    def test_each_on_its_own(self):
        for words, said in BAD_FLAGS:
            with self.subTest(words=words):
                result = self.run_ranks(1, "run", *words, launcher=False)
                self.assert_refused(result, *said)
                self.assertEqual(self.files_in(), [])

    def test_some_on_several_ranks(self):
        every, ranks_of = (1, (3, 4, 7)) if harness.LONG else (4, (2, 3))
        for i, (words, said) in enumerate(BAD_FLAGS[::every]):
            ranks = ranks_of[i % len(ranks_of)]
            with self.subTest(ranks=ranks, words=words):
                self.assert_refused(self.run_ranks(ranks, "run", *words), *said)
                self.assertEqual(self.files_in(), [])

    def test_a_line_break_in_a_value(self):
        for words in (("--placement", "a\nb"), ("--placement=\n",), ("--scale", "1\r\n2"), ("a\nb",)):
            with self.subTest(words=words):
                self.assert_refused(self.run_ranks(1, "run", *RANDOM, *words, launcher=False), "?")
        files = ("--check", "--q", "no\nq.npy", "--k", "k.npy", "--v", "v.npy")
        self.assert_refused(self.run_ranks(1, "run", *files, launcher=False), "no?q.npy: cannot be read")

    def test_a_world_of_another_size(self):
        self.run_well(3, "run", *RANDOM, "--expect-ranks", "3")
        self.assertEqual(self.run_well(3, "run", *RANDOM, "--np", "3").err, "--np is now --expect-ranks\n")
        self.assert_refused(self.run_ranks(3, "run", *RANDOM, "--expect-ranks", "4"), "--expect-ranks", "3 ranks", "mpirun")
        self.assert_refused(self.run_ranks(1, "run", *RANDOM, "--expect-ranks", "4"), "--expect-ranks", "1 rank ", "mpirun")

    def test_commands(self):
        for ranks in (1, 4):
            self.assert_refused(self.run_ranks(ranks), "subcommand", "ring-attention --help")
            self.assert_refused(self.run_ranks(ranks, "walk"), "walk", "ring-attention --help")
            self.assert_refused(self.run_ranks(ranks, "--bogus"), "--bogus", "--help")
        self.assert_refused(self.run_ranks(1, "example", "--bogus"), "--bogus", "example --help")
        self.assert_refused(self.run_ranks(1, "run", "example"), "example", "run --help")


class HelpTest(harness.CommandTest):
    def help_of(self, *words):
        result = self.run_well(1, *words, "--help", launcher=False)
        self.assertEqual(result.err, "")
        for line in result.out.splitlines():
            self.assertLessEqual(len(line), 100, line)
            self.assertEqual(line, line.rstrip())
        return result.out

    def test_program(self):
        text = self.help_of()
        for words in ("Usage: ring-attention", "run ", "example ", "mpirun -n", "--version"):
            self.assertIn(words, text)
        self.assertEqual(self.run_well(1, "-h", launcher=False).out, text)

    def test_commands(self):
        text = self.help_of("run")
        flags = """q k v dout random kv-heads value-dim backward seed out check json progress scale softcap causal window documents
                   prefix blocks sink-tokens global-tokens chunk intervals
                   alibi bias sink dropout dropout-seed q-offset placement transport kv-dtype engine threads isa tile
                   timeout expect-ranks"""
        for flag in flags.split():
            self.assertRegex(text, rf"(?m)^ +--{flag}\b")
        for words in ("Usage: ring-attention run", "mpirun -n 4", "default 64", "Exit code"):
            self.assertIn(words, text)
        self.assertIn("--text", self.help_of("example"))

    def test_rank_0_alone_prints(self):
        self.assertEqual(self.run_well(4, "run", "--help").out, self.help_of("run"))

    def test_version(self):
        for ranks in (1, 3):
            self.assertRegex(self.run_well(ranks, "--version").out, r"\Aring-attention \d+\.\d+\.\d+ \(CPU kernels: \w+\)\n\Z")


if __name__ == "__main__":
    harness.main()
