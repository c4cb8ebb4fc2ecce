// "Your choice": looks a play up in the tables of `ring-attention plan cells`, shows its numbers, and makes the events of a
// trace of it. And the six questions.
"use strict";

const CHOICES = {
  ranks: null, // those of the tables
  mask: { none: "none", causal: "causal", window: "window of 8 keys", documents: "causal, three documents" },
  placement: { contiguous: "contiguous", striped: "striped", zigzag: "zigzag" },
  partition: { ring: "ring", ulysses: "Ulysses", hybrid: "hybrid, pairs share heads", "all-gather": "all-gather" },
};

function chosen() {
  const { ranks, mask, placement, partition } = Object.fromEntries(Object.keys(CHOICES).map((id) => [id, by(id).value]));
  return playTables.plays.find((play) => play.ranks === Number(ranks) && play.mask === mask
    && play.placement === placement && play.partition === partition);
}

function workOf(rank, step) {
  return step[1] * (rank.heads[1] - rank.heads[0]);
}

function showChoice() {
  const play = chosen(), percent = Math.round(100 * play.balance);
  const waits = Math.max(...play.per_rank.map((rank) => rank.waits));
  const waiting = play.per_rank.flatMap((rank, i) => (waits > 0 && rank.waits === waits ? [i] : []));
  const steps = play.per_rank[0].steps.length;
  by("verdict").textContent = `${steps} ${steps === 1 ? "step" : "steps"}; the ranks compute ${percent} % of the time; `
    + (waiting.length === 0 ? "no rank waits for a slower one." : `rank ${waiting.join(" and rank ")} waits longest.`);
  const table = document.createElement("tbody");
  const row = (cells, name) => {
    const line = table.insertRow();
    for (const cell of cells) line.append(Object.assign(document.createElement(name), { textContent: cell }));
  };
  row(["rank", ...play.per_rank[0].steps.map((_, step) => `step ${step}`), "waits", "sends, bytes"], "th");
  play.per_rank.forEach((rank, i) => row([i, ...rank.steps.map((step) => `${workOf(rank, step)} (K,V ${step[0]})`),
                                          rank.waits, rank.bytes], "td"));
  const caption = Object.assign(document.createElement("caption"),
    { textContent: "Visible pairs of a query and a key, times heads, of each rank and step, and whose K,V" });
  by("table").replaceChildren(caption, table);
}

/** The events of a trace of this play. A unit of time is a pair and head; an exchange takes a fixed time. */
function eventsOf(play) {
  const events = [{ ph: "M", pid: 0, tid: 0, ts: 0, name: "attention", args: attentionOf(play) }];
  const gathers = play.partition === "all-gather", exchanges = play.partition !== "ring";
  const most = Math.max(...play.per_rank.map((rank) => rank.steps.reduce((sum, step) => sum + workOf(rank, step), 0)));
  const track = gathers ? TRACKS.allGather : TRACKS.allToAll, pause = Math.ceil(most / 8);
  play.per_rank.forEach((rank, pid) => {
    const add = (ph, tid, ts, more) => events.push({ ph, pid, tid, ts, ...more });
    const exchange = (ts, name) => {
      add("B", track, ts, { name: "exchange" });
      add("B", track, ts, { name: "wait" });
      play.per_rank.forEach((_, other) => {
        if (other === pid) return;
        add("s", track, ts, { cat: name, id: `${pid} ${other}` });
        add("f", track, ts + pause, { cat: name, id: `${other} ${pid}` });
      });
      add("E", track, ts + pause, {});
      add("E", track, ts + pause, {});
    };
    let time = 0;
    if (exchanges) exchange(time, "to heads");
    if (exchanges) time = pause;
    add("i", TRACKS.compute, time, { name: "forward", args: { queries: rank.queries, heads: rank.heads } });
    rank.steps.forEach((step, number) => { time = addStep(play, pid, number, time, add); });
    const all = rank.steps.reduce((sum, _, step) => sum + slowest(play, step), pause);
    if (exchanges && !gathers) exchange(all, "back");
  });
  return events;
}

function attentionOf(play) {
  return { queries: playTables.seq, keys: playTables.seq, heads: playTables.heads, query_cell: 1, key_cell: 1,
           cells: playTables.masks[play.mask] };
}

function slowest(play, number) {
  return Math.max(...play.per_rank.map((rank) => workOf(rank, rank.steps[number])));
}

/** One step of one rank: it computes, its parcel travels, and it waits for the slowest. Returns when the step is over. */
function addStep(play, pid, number, begin, add) {
  const rank = play.per_rank[pid], [owner, pairs, bytes] = rank.steps[number], work = workOf(rank, rank.steps[number]);
  const end = begin + (play.partition === "all-gather" ? work : slowest(play, number));
  const keys = play.partition === "ulysses" ? [[0, 1, playTables.seq]] : play.per_rank[owner].queries;
  const before = play.per_rank.findIndex((other) => other.next === pid);
  const message = (sender) => ({ cat: "K,V", id: `${sender} ${number}` });
  add("B", TRACKS.compute, begin, { name: "step", args: { step: number, owner, keys, pairs } });
  add("E", TRACKS.compute, begin + work, {});
  add("B", TRACKS.kv, begin, { name: "hop", args: { owner } });
  if (bytes > 0) add("s", TRACKS.kv, begin, message(pid));
  add("B", TRACKS.kv, begin + work, { name: "wait" });
  add("E", TRACKS.kv, end, {});
  if (play.per_rank[before].steps[number][2] > 0) add("f", TRACKS.kv, end, message(before));
  add("E", TRACKS.kv, end, {});
  return end;
}

const QUESTIONS = [
  ["A ring of four ranks computes in four steps. How many hops does a parcel make, and what would a fourth one bring?",
   "Three. In the scene “An overlapped ring” each rank begins with its own K,V, and after three hops it has seen those of "
   + "the three others. A fourth hop would return each parcel to its owner, which has used it in step 0."],
  ["A ring under a causal mask, four ranks: which placement balances it?",
   "Zigzag: the ranks compute 100 % of the time. Striped reaches 92 %: at a step a query of rank 3 sees up to one key "
   + "more than its neighbour on rank 0. Contiguous reaches 58 %: at each step after the first some "
   + "ranks see no key."],
  ["A ring, contiguous, causal: rank 3 of four sends nothing. Why?",
   "No rank needs its K,V: all queries of other ranks are before its keys. A parcel travels as far as the last rank with a "
   + "query that sees one of its keys, and no further. The K,V of rank 0 make three hops, those of rank 2 one."],
  ["Which placement balances a window of 8 keys on four ranks, and what does it cost?",
   "Striped: 95 %, contiguous 89 %, zigzag 66 %. But with striped tokens every K,V is needed by all ranks: a rank sends "
   + "49152 bytes, where contiguous sends 16384 at most. On a slow link contiguous can be faster: a parcel makes no more "
   + "hops than the window needs."],
  ["Of the two mistakes, a step too few and a hop too few, which one does the square show? What shows the other?",
   "The square shows the step too few: a block of each rank's rows stays empty. With a hop too few the square is complete, "
   + "in both passes: all numbers are computed. But dK,dV of each rank end on the rank before it, one hop from their owner. "
   + "So a check of the output, or of dQ, passes; only a check of dK or dV fails."],
  ["Eight ranks, no mask: Ulysses sends a quarter of the ring's bytes. Why does a ring still win where heads are few, or "
   + "steps are longer than hops?",
   "From the tables: 14336 bytes of a rank against 57344. But Ulysses cannot use more ranks than there are heads, 8 here "
   + "(or it must copy K,V heads), and in its exchanges every rank waits: nothing is computed meanwhile. The hops of a ring "
   + "travel while it computes, so what counts is not its bytes but whether a step is longer than a hop, as the two scenes "
   + "of two ranks show. A hybrid takes both: 32768 bytes."],
];

function fillQuestions() {
  for (const [question, answer] of QUESTIONS) {
    const details = document.createElement("details");
    details.append(Object.assign(document.createElement("summary"), { textContent: question }),
                   Object.assign(document.createElement("p"), { textContent: answer }));
    by("questions").append(details);
  }
}

function fillChoices() {
  const ranks = [...new Set(playTables.plays.map((play) => play.ranks))];
  CHOICES.ranks = Object.fromEntries(ranks.map((number) => [number, number]));
  for (const [id, words] of Object.entries(CHOICES)) {
    for (const [value, text] of Object.entries(words)) by(id).append(new Option(text, value));
    by(id).addEventListener("change", showChoice);
  }
  Object.entries({ ranks: "4", mask: "causal", placement: "contiguous", partition: "ring" })
    .forEach(([id, value]) => { by(id).value = value; });
  by("show").addEventListener("click", playChoice);
}

function playChoice() {
  const words = Object.keys(CHOICES).map((id) => CHOICES[id][by(id).value]);
  by("scene").value = "";
  player.load(readTrace(eventsOf(chosen())),
              `Your choice: ${words[0]} ranks; mask: ${words[1]}; placement: ${words[2]}; ${words[3]}.`,
              "From the tables of ring-attention plan cells, in lockstep: a microsecond is a pair of one head.");
  by("scene").scrollIntoView();
}

fillChoices();
showChoice();
fillQuestions();
