"""`--trace`: the files are valid Trace Event Format, and what they say is what the report says."""

import collections
import json
import os
import signal

import harness

PHASES = {"B", "E", "i", "s", "f", "M"}


def closed(text):
    """An array that a job has not ended, as readers of traces read it; the job may have died in its last event."""
    try:
        return json.loads(text + "]")
    except json.JSONDecodeError:
        return json.loads(text.rpartition(",\n")[0] + "]")


class TraceTest(harness.CommandTest):
    def events(self, name="trace.json"):
        return self.json(name)

    def assert_valid(self, events, ranks, whole=True):
        """The required fields; slices nest; an event comes after those before it on its line, and after the line's name."""
        open_slices, last, named = collections.defaultdict(list), collections.defaultdict(float), set()
        for event in events:
            self.assertIn(event["ph"], PHASES)
            for field in ("pid", "tid", "ts") + (("name",) if event["ph"] != "E" else ()):
                self.assertIn(field, event)
            self.assertIn(event["pid"], range(ranks))
            line = event["pid"], event["tid"]
            if event["ph"] == "M":
                if event["name"] == "thread_name":
                    named.add(line)
                continue
            self.assertIn(line, named, event)
            self.assertGreaterEqual(event["ts"], last[line], event)
            last[line] = event["ts"]
            if event["ph"] == "B":
                open_slices[line].append(event)
            elif event["ph"] == "E":
                self.assertTrue(open_slices[line], event)
                open_slices[line].pop()
            elif event["ph"] in "sf":
                self.assertTrue(open_slices[line], f"an arrow ends in no slice: {event}")
        if whole:
            self.assertFalse([slices for slices in open_slices.values() if slices])

    def assert_pairs(self, events):
        """Each send has its receive, and is not later: the ranks of one host share its clock. Bytes sent arrive."""
        for clock in (event["args"] for event in events if event.get("name") == "clock"):
            self.assertEqual(clock, {"offset_us": 0, "round_trip_us": 0})
        ends = {end: {(e["cat"], e["id"]): e for e in events if e["ph"] == end} for end in "sf"}
        self.assertEqual(set(ends["s"]), set(ends["f"]))
        self.assertEqual(len(ends["s"]), sum(event["ph"] == "s" for event in events))
        for key, sent in ends["s"].items():
            received = ends["f"][key]
            self.assertNotEqual(sent["pid"], received["pid"])
            self.assertGreaterEqual(received["ts"], sent["ts"])
        slices = [event for event in events if event["ph"] == "B" and event["name"] in ("hop", "exchange")]
        self.assertEqual(*(sum(event["args"][side] for event in slices) for side in ("send", "receive")))
        return len(ends["s"]), sum(event["args"]["send"] for event in slices)

    def waits(self, events, ranks):
        """Microseconds of each rank in slices that wait."""
        sums, stacks = [0] * ranks, collections.defaultdict(list)
        for event in events:
            stack = stacks[event["pid"], event["tid"]]
            if event["ph"] == "B":
                stack.append(event)
            elif event["ph"] == "E":
                begin = stack.pop()
                if begin["name"] == "wait":
                    sums[event["pid"]] += event["ts"] - begin["ts"]
        return sums

    def test_report_and_trace_agree(self):
        for words, *shared in (
            ("--causal --backward", "ring", 4, 1, "contiguous"),
            ("--backward --transport odd-even", "ring", 4, 1, "contiguous"),
            ("--parallel hybrid --ulysses 2 --backward", "hybrid", 2, 2, "contiguous"),
            ("--parallel all-gather --causal --placement zigzag", "all-gather", 4, 1, "zigzag"),
            ("--parallel ulysses", "ulysses", 1, 4, "contiguous"),
        ):
            with self.subTest(words):
                words = f"run --random 1,4,66,8 --json --trace trace.json {words}"
                report = json.loads(self.run_well(4, *words.split()).out)
                self.assertEqual(self.files_in(), ["trace.json"])
                events = self.events()
                self.assert_valid(events, 4)
                self.assertEqual(self.assert_pairs(events), (report["messages"], report["bytes_moved"]))
                for rank, waited in zip(report["per_rank"], self.waits(events, 4)):
                    seconds = rank["forward_exposed_seconds"] + rank["backward_exposed_seconds"]
                    self.assertAlmostEqual(waited, 1e6 * seconds, delta=0.1)
                    self.assertGreater(seconds, 0)
                self.assert_described(events, ["forward", "backward"][:1 + ("--backward" in words)], *shared)

    def assert_described(self, events, passes, partition, ring, ulysses, placement):
        """How four ranks share the attention; the heads of each pass; the line and the neighbours of each hop."""
        lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        hops = [event for event in events if event.get("name") == "hop"]
        steps = ring if partition != "all-gather" else 1
        due = {"K,V": 4 * len(passes) * (steps - 1), "dK,dV": 4 * steps * (len(passes) - 1)}
        self.assertEqual(collections.Counter(lines[e["pid"], e["tid"]] for e in hops), collections.Counter(due))
        exchanges = {lines[e["pid"], e["tid"]] for e in events if e.get("name") == "exchange"}
        self.assertEqual(exchanges, {"ring": set(), "all-gather": {"all-gather"}}.get(partition, {"all-to-all"}))
        for rank, to, back in ((e["pid"], e["args"]["to"], e["args"]["from"]) for e in hops):
            self.assertEqual((to, back), ((rank + ulysses) % 4, (rank - ulysses) % 4))
        for args in (event["args"] for event in events if event.get("name") == "attention"):
            said = [args[field] for field in ("partition", "ring", "ulysses", "placement", "heads")]
            self.assertEqual(said, [partition, ring, ulysses, placement, 4])
        for rank in range(4):
            begun = [(e["name"], *e["args"]["heads"]) for e in events if e["ph"] == "i" and e["pid"] == rank]
            first, own = rank % ulysses * 4 // ulysses, 4 // ulysses
            self.assertEqual(begun, [(name, first, first + own) for name in passes])

    def test_every_visible_pair_is_computed_once(self):
        """With the keys of the rank that the step says, in each placement."""
        for placement in ("contiguous", "striped", "zigzag"):
            words = f"run --random 1,1,34,4 --causal --placement {placement} --trace trace.json"
            self.run_well(4, *words.split())
            queries, pairs, owners, sent = {}, 0, collections.defaultdict(list), collections.defaultdict(list)
            for event in self.events():
                if event.get("name") == "forward":
                    queries[event["pid"]] = event["args"]["queries"]
            for event in self.events():
                if event["tid"] == 1 and event["ph"] == "B" and "owner" in event.get("args", {}):
                    self.assertEqual(event["args"]["keys"], queries[event["args"]["owner"]])  # self attention
                    owners[event["pid"]].append((event["args"]["step"], event["args"]["owner"]))
                    pairs += event["args"]["pairs"]
                if event["ph"] == "B" and event["name"] == "hop":
                    sent[event["pid"]].append((event["args"]["hop"], event["args"]["owner"]))
            self.assertEqual(dict(sent), {rank: [(1 + hop, (rank - hop) % 4) for hop in range(3)] for rank in range(4)})
            self.assertEqual(pairs, 34 * 35 // 2)
            self.assertEqual(dict(owners), {rank: [(step, (rank - step) % 4) for step in range(4)] for rank in range(4)})

    def test_phases_of_the_job_and_the_picture_of_the_mask(self):
        self.run_well(2, *"run --random 1,1,33,4 --causal --check --out results --trace trace.json".split())
        events = self.events()
        for rank in range(2):
            phases = [e["name"] for e in events if e["ph"] == "B" and (e["pid"], e["tid"]) == (rank, 0)]
            self.assertEqual(phases, ["reading the input", "checking against the reference", "writing the output"])
            picture = next(e for e in events if e.get("name") == "attention" and e["pid"] == rank)["args"]
            self.assertEqual((picture["query_cell"], picture["key_cell"], len(picture["cells"])), (2, 2, 17))
            for i, cells in enumerate(picture["cells"]):
                self.assertEqual(cells, "#" * i + "+#"[i == 16] + "." * (16 - i))  # the last one has a single query and key

    def test_other_commands(self):
        for words in (
            "bench --seq 64 --heads 1 --dim 8 --repetitions 1 --backward",
            "decode --random 1,4,24,8 --prompt 20",
            "train --seq 64 --steps 2 --evaluation-tokens 64 --width 16 --heads 2 --dim 8 --ffn 16",
        ):
            with self.subTest(words):
                self.run_well(2, *words.split(), "--trace", "trace.json")
                self.assertEqual(self.files_in(), ["trace.json"])
                self.assert_valid(self.events(), 2)
                self.assert_pairs(self.events())

    def test_killed_job_leaves_its_files(self):
        with harness.Job(
            2, *"bench --seq 256 --heads 1 --dim 8 --repetitions 10000 --trace trace.json".split(), cwd=self.folder
        ) as job:
            names = [self.path(f"trace.json.rank{rank}") for rank in range(2)]
            job.until(lambda: all(os.path.exists(name) and os.path.getsize(name) > 20000 for name in names), "events came")
            self.assert_valid(closed(harness.read_bytes(names[0]).decode()), 2, whole=False)  # while it runs
            harness.send(job.rank(1), signal.SIGKILL)
            job.wait()
        for name in names:
            events = closed(harness.read_bytes(name).decode())
            self.assertGreater(len(events), 100)
            self.assert_valid(events, 2, whole=False)

    def test_bad_input_leaves_one_file(self):
        words = "run --q no.npy --k no.npy --v no.npy --check --trace trace.json"
        self.assert_refused(self.run_ranks(2, *words.split()), "no.npy")
        self.assertEqual(self.files_in(), ["trace.json"])
        self.assert_valid(self.events(), 2)

    def test_file_that_cannot_be_written(self):
        self.assert_refused(
            self.run_ranks(2, *"run --random 1,1,8,4 --trace missing/trace.json".split()), "missing/trace.json", "--trace"
        )
