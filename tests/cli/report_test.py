"""What `ring-attention run` says it did: the text, the JSON object and report.json."""

import json

import harness
from reference import random_values

FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


class ReportTest(harness.CommandTest):
    def assert_forward_counts(self, report, q_shape, kv_shape, element_bytes):
        """Messages and bytes are what the ring's formula says: a parcel goes as far as the last rank with a query."""
        batch, kv_heads, keys, dim = kv_shape
        ranks = report["ranks"]
        own = [keys // ranks + (r < keys % ranks) for r in range(ranks)]
        rows = [q_shape[2] // ranks + (r < q_shape[2] % ranks) for r in range(ranks)]
        hops = [max(hop for hop in range(ranks) if hop == 0 or rows[(r + hop) % ranks] > 0) for r in range(ranks)]
        self.assertEqual(report["hops"], ranks - 1)
        for r, rank in enumerate(report["per_rank"]):
            owners = [(r - hop) % ranks for hop in range(ranks - 1)]  # of the parcel that hop 1, 2, ... takes on from here
            sent = [own[owner] for hop, owner in enumerate(owners) if hop < hops[owner] and own[owner] > 0]
            size = 2 * batch * kv_heads * dim * element_bytes * sum(sent)
            self.assertEqual((rank["messages_sent"], rank["bytes_sent"]), (len(sent), size), f"rank {r}")
        self.assertEqual(report["messages"], sum(rank["messages_sent"] for rank in report["per_rank"]))
        self.assertEqual(report["bytes_moved"], sum(rank["bytes_sent"] for rank in report["per_rank"]))
        self.assertEqual(sum(rank["tokens"] for rank in report["per_rank"]), q_shape[2])

    def test_messages_and_bytes(self):
        for ranks, q_shape, kv_shape, dtype in (
            (1, (2, 4, 9, 4), (2, 2, 9, 4), "<f4"),
            (3, (2, 4, 10, 4), (2, 2, 10, 4), "<f8"),
            (4, (2, 4, 9, 4), (2, 2, 14, 4), "<f4"),
            (7, (1, 2, 5, 4), (1, 1, 5, 4), "<f2"),
        ):
            for transport in ("overlapped", "odd-even"):
                with self.subTest(ranks=ranks, kv=kv_shape, dtype=dtype, transport=transport):
                    for name, shape in (("q", q_shape), ("k", kv_shape), ("v", kv_shape)):
                        self.save(**{name: random_values(shape, 1, dtype)})
                    self.run_well(ranks, "run", *FILES, "--out", "results", "--transport", transport)
                    report = self.report()
                    self.assertEqual(report["transport"], transport)
                    self.assertEqual((report["q_shape"], report["kv_shape"]), (list(q_shape), list(kv_shape)))
                    self.assert_forward_counts(report, q_shape, kv_shape, 8 if dtype == "<f8" else 4)

    def test_messages_and_bytes_with_gradients(self):
        """K,V make N - 1 hops twice, dK,dV one hop a step more: a parcel passes every link."""
        for ranks in (1, 3, 4):
            self.run_well(ranks, *"run --random 1,2,10,4 --backward --out results".split())
            report = self.report()
            hops = 3 * ranks - 2 if ranks > 1 else 0
            parcels = 2 * 2 * 4 * 4 * 10  # all ranks' K,V, or dK,dV, in bytes
            self.assertEqual((report["hops"], report["messages"]), (hops, hops * ranks))
            self.assertEqual(report["bytes_moved"], hops * parcels)

    def test_json_is_one_object_and_nothing_else(self):
        for ranks in (1, 4):
            words = "run --random 1,2,32,8 --causal --backward --check --json --out results"
            result = self.run_well(ranks, *words.split())
            printed = json.loads(result.out)
            self.assertEqual(result.err, "")
            self.assertIs(printed["ok"], True)
            self.assertEqual((printed["ranks"], len(printed["per_rank"])), (ranks, ranks))
            self.assertEqual(printed["warnings"], [])
            for rank in printed["per_rank"]:
                for name in ("out", "lse", "dq", "dk", "dv"):
                    self.assertIs(rank[name]["ok"], True)
                    self.assertEqual(rank[name]["rows"], 32 // ranks)
                    self.assertLess(0, rank[name]["max"])
                    self.assertLess(rank[name]["max"], 1e-5)
            saved = self.report()
            self.assertEqual(sorted(saved), sorted(printed))
            self.assertEqual(saved["per_rank"], printed["per_rank"])
            text = self.run_well(ranks, *words.replace("--json ", "").split()).out
            self.assertIn("Wrote out.npy, lse.npy, dq.npy, dk.npy, dv.npy and report.json to results", text)
            self.assertTrue(all(len(line) <= 100 for line in text.splitlines()), text)

    def test_check_table_has_a_line_for_each_array_and_rank(self):
        result = self.run_well(4, *"run --random 1,2,33,8 --check".split())
        lines = [line.split() for line in result.out.splitlines()]
        heading = lines.index("array rank rows max mean relative verdict".split())
        rows = [[*row[:3], row[-1]] for row in lines[heading + 1 : heading + 9]]
        self.assertEqual(rows, [[name, str(rank), "98"[rank > 0], "ok"] for name in ("out", "lse") for rank in range(4)])
        self.assertEqual(self.files_in(), [])

    def test_text_says_what_was_done(self):
        for ranks, words, parts in (
            (1, "1,1,4,4", ("on 1 rank;",)),
            (3, "1,4,32,8 --kv-heads 2 --causal --placement zigzag --backward",
             ("Attention and its gradients, float32, on 3 ranks", "[1, 4, 32, 8]  random", "[1, 2, 32, 8]  random", "causal",
              "zigzag placement, overlapped transport", "21 messages, at most 7 hops per rank")),
            (4, "1,4,32,8 --backward --parallel hybrid --ulysses 2",
             ("hybrid  heads over 2 ranks, all-to-all in float32", ": all-to-all ", ", rings ", "at most 4 hops per rank",
              "rings   of 2: contiguous placement, overlapped transport, K,V travel in float32")),
            (2, "1,4,32,8 --parallel ulysses", ("ulysses heads over 2 ranks, all-to-all in float32",)),
            (3, "1,4,32,8 --parallel all-gather", ("gather  K,V of all ranks, in float32, contiguous placement",)),
            (2, "1,4,32,8", ("ring    contiguous placement, overlapped transport, K,V travel in float32",)),
        ):
            with self.subTest(words):
                result = self.run_well(ranks, "run", "--random", *words.split())
                self.assertEqual([part for part in parts if part not in result.out], [], result.out)
                self.assertTrue(all(len(line) <= 100 for line in result.out.splitlines()), result.out)
                self.assertEqual(result.err, "")

    def test_a_long_run_says_first_how_long(self):
        words = "run --random 1,3,32768,64 --causal --placement zigzag --json --progress always".split()
        run = self.run_well(2, *words)
        self.assertRegex(run.err, r"^about [\d.]+ (ms|s|min), at the rate of a small part\n")
        report = json.loads(run.out)
        ratio = report["expected_seconds"] / report["forward_seconds"]
        self.assertTrue(1 / 20 < ratio < 20, ratio)  # machines are noisy
