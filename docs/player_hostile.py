"""Traces that are not what the program writes: the player says so in one line, or plays them, and stays responsive."""

import json

LARGEST, MUTANT = 10, 0.1  # CPU seconds: the largest trace that is taken, opened and drawn; a mutant, on average

NO_TRACE = ("", "null", "7", "{}", '{"traceEvents": 7}')
# Events of hostile.ring(2, 64), what they get, and words of the line that refuses it (None: it is played).
ATTENTION, PASS, HOP, STEP, END = [0], [1], [2, 3], [4], [5]
CHANGES = [
    (PASS, "ph: 'X'", None),
    (PASS, "args: null", None),
    (HOP, "tid: 3, args: {}", None),
    (STEP, "ph: null", None),
    (STEP, "pid: 4096", "4097 ranks"),
    (STEP, "pid: 1e12", "1000000000001 ranks"),
    (STEP, "pid: -1", "`pid`"),
    (STEP, "args: {owner: 5000}", "5001 ranks"),
    (ATTENTION, "args: {queries: 10000001}", "10000001 tokens"),
    (ATTENTION, "args: {queries: 64, keys: 1e300}", "`keys`"),
    (ATTENTION, "args: {...attention, cells: ['#']}", "`cells`"),
    (ATTENTION, "args: {...attention, queries: 1e6, query_cell: 1}", "1000000 rows"),
    (PASS, "args: {queries: [[0, 1, 1e12]]}", "1000000000000 tokens"),
    (STEP, "args: {keys: [[0, 1, 65]]}", "65 tokens"),
    (STEP, "args: {keys: [[0, 0, 8]]}", "in a range"),
    (STEP, "args: {keys: 'all'}", "ranges"),
    (STEP, "args: {keys: [[0, 1, 64]], heads: [1, 0]}", "heads"),
    (STEP, "ts: 'now'", "`ts`"),
    (END, "ts: -1", "before it begins"),
]

PAGE = """
const hostile = {
  opened: async (text) => {
    await player.open([new File([text], "trace.json")]);
    const said = by("about").textContent, refused = !said.startsWith("Your trace");
    if (!refused) {
      player.seek(player.trace.end);
      player.step(-1);
    }
    return { said, refused };
  },
  /** What is wrong with how a text was opened, or an empty text. */
  wrong: (text, { said, refused }) => {
    if (!refused) return "";
    if (!/^trace.json cannot be played: [^\\n]+\\.$/.test(said)) return `it is refused by: ${said}`;
    try {
      if (readTrace(readEvents(text)).moments.length > 1) return `it is read, but not drawn: ${said}`;
    } catch (error) {
      if (error.constructor !== Error) return `${error}`;
    }
    return "";
  },
  /** A ring of some ranks: each computes two steps and receives one parcel. */
  ring: (ranks, tokens) => {
    const cell = Math.ceil(tokens / 32), rows = Math.ceil(tokens / cell);
    const own = (rank) => [[rank, ranks, Math.floor(tokens / ranks)]];
    const attention = { queries: tokens, keys: tokens, heads: 1, query_cell: cell, key_cell: cell,
                        cells: new Array(rows).fill("#".repeat(rows)) };
    const events = [{ ph: "M", pid: 0, tid: 0, ts: 0, name: "attention", args: attention }];
    for (let pid = 0; pid < ranks; ++pid) {
      const add = (ph, tid, ts, more) => events.push({ ph, pid, tid, ts, ...more });
      const step = (number) => ({ name: "step", args: { step: number, owner: (pid + ranks - number) % ranks,
                                                        keys: own((pid + ranks - number) % ranks) } });
      add("i", 1, 0, { name: "forward", args: { queries: own(pid) } });
      add("B", 2, 1, { name: "hop", args: { owner: pid } });
      add("s", 2, 1, { cat: "K,V", id: pid });
      add("B", 1, 1, step(0));
      add("E", 1, 5 + pid % 7, {});
      add("B", 2, 5 + pid % 7, { name: "wait" });
      add("E", 2, 15, {});
      add("f", 2, 15, { cat: "K,V", id: (pid + ranks - 1) % ranks });
      add("E", 2, 15, {});
      add("B", 1, 15, step(1));
      add("E", 1, 20 + pid % 5, {});
    }
    return events;
  },
  random: (seed) => () => (seed = (seed * 48271) % 0x7fffffff) / 0x7fffffff,  // Lehmer's generator, of a seed above 0
  strange: [null, true, -1, 0, 1.5, 7, 4095, 4096, 1e7, 1e9, 1e300, "", "x", "\\n", [], {}, [[0, 1, 1e7]],
            [[0, 1, 1e12]], [[5]], [[1e15, 1e15, 1e15]], [0, 1], [3, 1], "queries", ["#"]],
  /** A few changes of events, and of one text in five. */
  mutant: (base, draw) => {
    const some = (list) => list[Math.floor(draw() * list.length)], places = [];
    const events = JSON.parse(base, function (key, value) {
      if (key) places.push([this, key]);
      return value;
    });
    for (let changes = Math.floor(draw() * 3); changes >= 0; --changes) {
      const [object, key] = some(places), how = draw();
      if (how < 0.15) {
        if (Array.isArray(object)) object.splice(key, 1);
        else delete object[key];
      } else if (how < 0.3) {
        const at = Math.floor(draw() * events.length);
        [events[at], events[0]] = [events[0], events[at]];
      } else if (how < 0.5 && typeof object[key] === "number") {
        object[key] *= 10 ** Math.floor(12 * draw() - 3);
      } else {
        object[key] = some(hostile.strange);
      }
    }
    const text = JSON.stringify(events), at = Math.floor(draw() * text.length), how = draw();
    if (how < 0.8) return text;
    return text.slice(0, at) + (how < 0.9 ? "" : String.fromCharCode(32 + 90 * draw()) + text.slice(at + 1));
  },
  /** Opens mutants of some traces; nothing is laid out meanwhile. */
  mutants: async (count) => {
    const scenes = recordedScenes.filter(({ name }) => ["decoding", "backward", "ulysses"].includes(name));
    const traces = [hostile.ring(3, 64), ...scenes.map(({ events }) => events.slice(0, 120))];
    const bases = traces.map((events) => JSON.stringify(events));
    const found = { wrong: [], refused: 0 };
    document.body.hidden = true;
    for (let number = 0; number < count; ++number) {
      const text = hostile.mutant(bases[number % bases.length], hostile.random(1e6 + 7919 * number));
      const how = await hostile.opened(text), wrong = hostile.wrong(text, how);
      if (wrong) found.wrong.push(`mutant ${number}: ${wrong}`);
      found.refused += how.refused;
    }
    document.body.hidden = false;
    return found;
  },
};"""


def changes(page):
    for text in NO_TRACE:
        found = page.run(f"hostile.opened({json.dumps(text)})")
        if "this file is no trace in JSON" not in found["said"]:
            yield f"{text}: the player says: {found['said']}"
    for numbers, change, words in CHANGES:
        found = page.run(f"""(() => {{
          const events = hostile.ring(2, 64), attention = events[0].args;
          for (const number of {numbers}) Object.assign(events[number], {{{change}}});
          return hostile.opened(JSON.stringify(events));
        }})()""")
        if found["refused"] != (words is not None) or (words or "") not in found["said"]:
            yield f"{change}: the player says: {found['said']}"


def cpu_seconds(page):
    """Of the process of the page: on a busy machine, too, it says whether the page stays responsive."""
    page.call("Performance.enable")
    metrics = page.call("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in metrics if one["name"] == "ProcessTime")


def failures(page, mutants):
    page.run(f"window.hostile = (() => {{ {PAGE} return hostile; }})()")
    yield from changes(page)
    begin = cpu_seconds(page)
    large = page.run("hostile.opened(JSON.stringify(hostile.ring(4096, 1e7)))")
    took = cpu_seconds(page) - begin
    if large["refused"] or took > LARGEST:
        yield f"4096 ranks and 10^7 tokens take {took} s: {large['said']}"
    begin = cpu_seconds(page)
    found = page.run(f"hostile.mutants({mutants})")
    took = cpu_seconds(page) - begin
    yield from found["wrong"][:5]
    if took > 1 + mutants * MUTANT:
        yield f"{mutants} mutated traces take {took} s"
    if not mutants * 0.2 < found["refused"] < mutants * 0.9:
        yield f"{found['refused']} of {mutants} mutated traces are refused: too few or too many for a test"
