// What a trace says: Trace Event Format in, slices, messages and passes out. No drawing here.
"use strict";

const TRACKS = { compute: 1, kv: 2, gradients: 3, allToAll: 4, allGather: 5 };

const MOST = { ranks: 4096, tokens: 1e7, cells: 64, rectangles: 20000 }; // that the page can draw
const KEPT = 0.005; // of the time in which a rank has an event: what is left of a longer time in which none has
const PHASES = new Set(["M", "B", "E", "i", "s", "f"]); // others are ignored

/** The events of a file: an array, an object with `traceEvents`, or an array that a job did not end. */
function readEvents(text) {
  const ends = [() => text, () => text + "]", () => text.slice(0, text.lastIndexOf(",\n")) + "]"];
  for (const end of ends) {
    try {
      const read = JSON.parse(end()), events = Array.isArray(read) ? read : read?.traceEvents;
      if (Array.isArray(events)) return events;
      break;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
  }
  throw new Error("this file is no trace in JSON");
}

/**
 * Slices of each line, in the order in which they begin; the ends of messages. Times from the first compute or hop on.
 * Throws an Error with a sentence where the events are not those of a trace, or too many to draw.
 */
function readTrace(events) {
  const trace = { ranks: 0, attention: null, computes: [], waits: [], flights: [], passes: [], end: 0 };
  const known = events.filter((event) => PHASES.has(event?.ph));
  for (const event of known) trace.ranks = Math.max(trace.ranks, ranksOf(event));
  trace.of = Array.from({ length: trace.ranks }, () => ({ computes: [], waits: [], arrivals: [], passes: [] }));
  const described = known.find((event) => event.ph === "M" && event.name === "attention");
  if (described) trace.attention = checkedAttention(described.args);
  const open = new Map(), sent = new Map(), arrived = [];
  const drawn = known.filter((event) => event.ph !== "M" && event.tid !== 0);
  const begin = drawn.reduce((least, event) => Math.min(least, event.ts), Infinity);
  for (const event of drawn) readEvent(trace, event, event.ts - begin, open, sent, arrived);
  for (const slice of [...open.values()].flat()) { // of a job that died
    slice.end = trace.end;
    trace.died = true;
  }
  for (const { key, end, to } of arrived) if (sent.has(key)) Object.assign(sent.get(key), { end, to });
  trace.flights = trace.flights.filter((flight) => flight.to !== undefined).sort((a, b) => a.begin - b.begin);
  for (const slice of trace.computes) trace.of[slice.rank].computes.push(slice);
  for (const slice of trace.waits) trace.of[slice.rank].waits.push(slice);
  for (const flight of trace.flights) trace.of[flight.to].arrivals.push(flight);
  trace.ofPass = new Map(trace.computes.map(({ pass }) => [pass, []]));
  for (const slice of trace.computes) trace.ofPass.get(slice.pass).push(slice);
  const lines = trace.computes.concat(trace.waits, trace.flights);
  cutGaps(trace, lines);
  queueUp(trace.flights);
  trace.moments = [...new Set(lines.flatMap(({ begin, end }) => [begin, end]).concat(0, trace.end))].sort((a, b) => a - b);
  trace.verdict = verdictOf(trace);
  return trace;
}

/**
 * Shortens the times in which no rank has an event, if any has one. `cuts`: where, on the time that is left, and how much is
 * cut there.
 */
function cutGaps(trace, lines) {
  const gaps = [];
  let reached = 0;
  for (const { begin, end } of [...lines].sort((a, b) => a.begin - b.begin).concat({ begin: trace.end, end: trace.end })) {
    if (begin > reached) gaps.push([reached, begin - reached]);
    reached = Math.max(reached, end);
  }
  const most = KEPT * (trace.end - gaps.reduce((sum, [, length]) => sum + length, 0)) || trace.end;
  const long = gaps.filter(([, length]) => length > most);
  const points = lines.flatMap((one) => [[one, "begin"], [one, "end"]])
    .concat(trace.passes.map((one) => [one, "begin"]), [[trace, "end"]]).sort(([a, x], [b, y]) => a[x] - b[y]);
  let cut = 0, next = 0;
  trace.cuts = [];
  for (const [one, side] of points) {
    for (; next < long.length && long[next][0] + long[next][1] <= one[side]; ++next) {
      trace.cuts.push({ at: long[next][0] - cut, cut: long[next][1] - most });
      cut += long[next][1] - most;
    }
    const inside = next < long.length ? Math.max(0, one[side] - long[next][0] - most) : 0;
    one[side] -= cut + inside;
  }
}

/**
 * A parcel has arrived where its rank sends the next one, though the other rank has not looked yet; the next one leaves when
 * the other rank has.
 */
function queueUp(flights) {
  const last = new Map();
  for (const flight of flights) {
    const way = `${flight.track} ${flight.from}`, before = last.get(way);
    last.set(way, flight);
    if (!before || before.end <= flight.begin) continue;
    before.arrives = flight.begin;
    flight.leaves = before.end;
  }
}

function integer(value, name, least = 0, most = Number.MAX_SAFE_INTEGER) {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new Error(`${name} is ${`${JSON.stringify(value)}`.slice(0, 40)}, not an integer from ${least} to ${most}`);
}

function atMost(count, most, what) {
  if (count > most) throw new Error(`it has ${count} ${what}: the player takes at most ${most}`);
  return count;
}

/** The ranks of a trace in which this event is. */
function ranksOf({ pid, tid, ts, args }) {
  integer(tid, "the `tid` of an event");
  const isTime = typeof ts === "number" && Math.abs(ts) <= Number.MAX_SAFE_INTEGER;
  if (!isTime) throw new Error("the `ts` of an event is no time");
  const owner = args?.owner === undefined ? 0 : integer(args.owner, "the `owner` of an event");
  return atMost(Math.max(integer(pid, "the `pid` of an event"), owner) + 1, MOST.ranks, "ranks");
}

function checkedAttention(args) {
  const { queries, keys, heads, query_cell, key_cell, cells } = args ?? {};
  atMost(integer(queries, "the `queries` of `attention`", 1), MOST.tokens, "tokens");
  atMost(integer(keys, "the `keys` of `attention`", 1), MOST.tokens, "tokens");
  integer(heads, "the `heads` of `attention`", 1);
  const rows = Math.ceil(queries / integer(query_cell, "`query_cell`", 1));
  const columns = Math.ceil(keys / integer(key_cell, "`key_cell`", 1));
  atMost(Math.max(rows, columns), MOST.cells, "rows or columns of cells");
  const whole = Array.isArray(cells) && cells.length === rows
    && cells.every((row) => typeof row === "string" && row.length === columns);
  if (!whole) throw new Error(`the \`cells\` of \`attention\` are not ${rows} rows of ${columns}`);
  return { queries, keys, heads, query_cell, key_cell, cells };
}

/** Ranges [begin, stride, count] of tokens, or undefined. */
function checkedRanges(ranges, tokens) {
  if (ranges === undefined) return undefined;
  if (!Array.isArray(ranges)) throw new Error("the tokens of a step are no list of ranges");
  for (const range of ranges) {
    if (!Array.isArray(range) || range.length !== 3) throw new Error("a range of tokens is not [begin, stride, count]");
    const [begin, stride, count] = range.map((value, i) => integer(value, "a number in a range", i === 1 ? 1 : 0));
    if (count > 0) atMost(begin + (count - 1) * stride + 1, tokens, "tokens in a step");
  }
  return ranges;
}

function checkedHeads(heads, attention) {
  if (heads === undefined) return undefined;
  if (!Array.isArray(heads) || heads.length !== 2) throw new Error("the heads of a step are not [begin, end]");
  integer(heads[1], "the end of heads", integer(heads[0], "the begin of heads"), attention?.heads);
  return heads;
}

/** What the drawings use of an event's `args`. */
function checkedArguments({ attention }, { owner, step, queries, keys, heads } = {}) {
  if (step !== undefined) integer(step, "the `step` of a step");
  return { owner, step, queries: checkedRanges(queries, attention?.queries ?? MOST.tokens),
           keys: checkedRanges(keys, attention?.keys ?? MOST.tokens), heads: checkedHeads(heads, attention) };
}

function readEvent(trace, event, at, open, sent, arrived) {
  const line = `${event.pid} ${event.tid}`, key = `${event.cat} ${event.id}`;
  if (!open.has(line)) open.set(line, []);
  const stack = open.get(line), { passes } = trace.of[event.pid];
  trace.end = Math.max(trace.end, at);
  if (event.ph === "i" && event.args?.queries) {
    const { queries, heads } = checkedArguments(trace, event.args);
    const pass = { rank: event.pid, name: `${event.name}`, begin: at, queries, heads };
    passes.push(pass);
    trace.passes.push(pass);
  } else if (event.ph === "B") {
    const own = checkedArguments(trace, event.args ?? {}), pass = passes.at(-1);
    // A step computes the queries and heads of its pass, unless it has its own, as a token that is decoded.
    const slice = { rank: event.pid, track: event.tid, name: `${event.name}`, begin: at, end: trace.end, pass: passes.length - 1,
                    ...own, queries: own.queries ?? pass?.queries,
                    heads: own.heads ?? pass?.heads ?? [0, trace.attention?.heads ?? 1] };
    stack.push(slice);
    if (slice.keys) trace.computes.push(slice);
    if (slice.name === "wait") trace.waits.push(slice);
  } else if (event.ph === "E" && stack.length > 0) {
    const slice = stack.pop();
    if (at < slice.begin) throw new Error("a slice ends before it begins");
    slice.end = at;
  } else if (event.ph === "s") {
    const hop = stack.at(-1) ?? {};
    const flight = { from: event.pid, track: event.tid, begin: at, owner: hop.owner, pass: hop.pass };
    sent.set(key, flight);
    trace.flights.push(flight);
  } else if (event.ph === "f") {
    arrived.push({ key, end: at, to: event.pid });
  }
}

/** The pass that the trace is in: the latest that a rank has begun. */
function passAt(trace, time) {
  const begun = new Array(trace.ranks).fill(-1);
  for (const pass of trace.passes) if (pass.begin <= time) begun[pass.rank] += 1;
  return Math.max(0, ...begun);
}

/** The tokens of some ranges, counted by cell, as parts of the cell. */
function partsOfCells(ranges, size, tokens) {
  const parts = new Map();
  for (const [begin, stride, count] of ranges) {
    const before = (position) => Math.min(count, Math.max(0, Math.ceil((position - begin) / stride))); // tokens
    const last = Math.floor((begin + (count - 1) * stride) / size);
    for (let cell = Math.floor(begin / size); cell <= last; ++cell) {
      const here = before((cell + 1) * size) - before(cell * size), whole = Math.min(size, tokens - cell * size);
      if (here > 0) parts.set(cell, (parts.get(cell) ?? 0) + here / whole);
    }
  }
  return parts;
}

/** How much of each visible cell has been computed at a time: [row][column], 1 when all heads are. */
function coverage(trace, time, pass = passAt(trace, time)) {
  const of = trace.attention, last = trace.covered;
  if (last?.time === time && last.pass === pass) return last.cells;
  const covered = of.cells.map((row) => new Float64Array(row.length));
  for (const slice of trace.ofPass.get(pass) ?? []) {
    if (slice.end > time) continue;
    const heads = (slice.heads[1] - slice.heads[0]) / of.heads;
    const columns = [...partsOfCells(slice.keys, of.key_cell, of.keys)];
    for (const [row, part] of partsOfCells(slice.queries, of.query_cell, of.queries))
      for (const [column, width] of columns) covered[row][column] += part * width * heads;
  }
  trace.covered = { time, pass, cells: covered };
  return covered;
}

/** Visible cells in all, and those that are computed, each once. */
function countCells(trace, time, pass) {
  const counts = { visible: 0, complete: 0, twice: 0 };
  const covered = coverage(trace, time, pass);
  trace.attention.cells.forEach((row, i) => [...row].forEach((cell, j) => {
    if (cell === ".") return;
    counts.visible += 1;
    // A token that is decoded meets the keys that are there: at least half of a cell that the mask cuts.
    if (covered[i][j] > (cell === "+" ? 0.5 : 1 - 1e-6)) counts.complete += 1;
    if (covered[i][j] > 1 + 1e-6) counts.twice += 1;
  }));
  return counts;
}

/** Where dK,dV of each rank are: {owner, rank} or, on their way, {owner, flight}. None outside a backward of a ring. */
function gradientsAt(trace, time) {
  const pass = passAt(trace, time);
  const flights = trace.flights.filter((flight) => flight.track === TRACKS.gradients && flight.pass === pass
    && flight.owner !== undefined);
  const parcels = new Map();
  for (const { owner } of flights) parcels.set(owner, { owner, rank: owner });
  for (const flight of flights)
    if (flight.end <= time) parcels.set(flight.owner, { owner: flight.owner, rank: flight.to });
    else if (flight.begin <= time) parcels.set(flight.owner, { owner: flight.owner, flight });
  return [...parcels.values()];
}

/** What a rank does at a time: its slice of computing or waiting, or null. */
function doingOf(trace, rank, time) {
  const at = (slice) => slice.begin <= time && time < slice.end, { computes, waits } = trace.of[rank];
  return computes.find(at) ?? waits.find(at) ?? null;
}

/** The state of a moment, in words: a line for each rank. */
function wordsOf(trace, time) {
  return trace.of.map((_, rank) => `rank ${rank} ${wordsOfRank(trace, rank, time)}`);
}

function wordsOfRank(trace, rank, time) {
  const doing = doingOf(trace, rank, time);
  if (!doing) {
    const later = (slice) => slice.begin >= time, { computes, waits } = trace.of[rank];
    return computes.some(later) || waits.some(later) ? "is between two steps" : "has ended";
  }
  if (doing.name === "wait" && doing.track >= TRACKS.allToAll) return "exchanges pieces with the others and waits for theirs";
  if (doing.name === "wait") {
    const flight = trace.of[rank].arrivals.find((one) => one.begin <= time && time < one.end);
    return flight ? `waits for ${parcelName(flight)} from rank ${flight.from}` : "waits for its neighbours";
  }
  if (doing.owner === undefined) return "computes with the K,V that it holds";
  return `computes with K,V of ${doing.owner === rank ? "its own" : `rank ${doing.owner}`}, step ${doing.step}`;
}

function parcelName({ track, owner }) {
  if (track === TRACKS.kv) return `K,V of rank ${owner}`;
  return track === TRACKS.gradients ? `dK,dV of rank ${owner}` : "pieces";
}

/** What is wrong at the end, in sentences: cells that no rank has computed, gradients that are not at their owner. */
function verdictOf(trace) {
  const sentences = trace.died ? ["The trace ends in the middle of a step."] : [];
  const passes = trace.attention ? passAt(trace, trace.end) + 1 : 0;
  for (let pass = 0; pass < passes; ++pass) {
    if (!trace.ofPass.has(pass)) continue; // `bench` measures messages alone, too
    const { visible, complete } = countCells(trace, trace.end, pass);
    if (complete < visible) sentences.push(`${visible - complete} of ${visible} visible cells are computed by no rank.`);
  }
  for (const { owner, rank } of gradientsAt(trace, trace.end))
    if (rank !== owner) sentences.push(`dK,dV of rank ${owner} end on rank ${rank ?? "none"}.`);
  return [...new Set(sentences)];
}
