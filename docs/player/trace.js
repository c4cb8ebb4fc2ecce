// What a trace says: Trace Event Format in, slices, messages and passes out. No drawing here.
"use strict";

const TRACKS = { compute: 1, kv: 2, gradients: 3, allToAll: 4, allGather: 5 };

/** The events of a file: an array, an object with `traceEvents`, or an array that a job did not end. */
function readEvents(text) {
  const ends = [() => text, () => text + "]", () => text.slice(0, text.lastIndexOf(",\n")) + "]"];
  for (const end of ends) {
    try {
      const read = JSON.parse(end());
      return Array.isArray(read) ? read : read.traceEvents;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
  }
  throw new Error("this file is no trace in JSON");
}

/** Slices of each line, in the order in which they begin; the ends of messages. Times from the first compute or hop on. */
function readTrace(events) {
  const trace = { ranks: 0, attention: null, computes: [], waits: [], flights: [], passes: [], end: 0 };
  const open = new Map(), sent = new Map(), arrived = [];
  const drawn = events.filter((event) => event.ph !== "M" && event.tid !== 0);
  const begin = drawn.reduce((least, event) => Math.min(least, event.ts), Infinity);
  for (const event of events) {
    trace.ranks = Math.max(trace.ranks, event.pid + 1);
    if (event.ph === "M" && event.name === "attention") trace.attention ??= event.args;
  }
  for (const event of drawn) readEvent(trace, event, event.ts - begin, open, sent, arrived);
  for (const slice of [...open.values()].flat()) { // of a job that died
    slice.end = trace.end;
    trace.died = true;
  }
  for (const { key, end, to } of arrived) if (sent.has(key)) Object.assign(sent.get(key), { end, to });
  trace.flights = trace.flights.filter((flight) => flight.to !== undefined).sort((a, b) => a.begin - b.begin);
  const lines = trace.computes.concat(trace.waits, trace.flights);
  trace.moments = [...new Set(lines.flatMap(({ begin, end }) => [begin, end]).concat(0, trace.end))].sort((a, b) => a - b);
  return trace;
}

function readEvent(trace, event, at, open, sent, arrived) {
  const line = `${event.pid} ${event.tid}`, key = `${event.cat} ${event.id}`;
  if (!open.has(line)) open.set(line, []);
  const stack = open.get(line), args = event.args ?? {};
  trace.end = Math.max(trace.end, at);
  if (event.ph === "i" && args.queries) {
    trace.passes.push({ rank: event.pid, name: event.name, begin: at, ...args });
  } else if (event.ph === "B") {
    const slice = { rank: event.pid, track: event.tid, name: event.name, begin: at, end: trace.end, ...args };
    slice.pass = trace.passes.filter((pass) => pass.rank === event.pid).length - 1;
    stack.push(slice);
    if (args.keys) trace.computes.push(withQueries(trace, slice));
    if (event.name === "wait") trace.waits.push(slice);
  } else if (event.ph === "E" && stack.length > 0) {
    stack.pop().end = at;
  } else if (event.ph === "s") {
    const hop = stack.at(-1) ?? {};
    const flight = { from: event.pid, track: event.tid, begin: at, owner: hop.owner, pass: hop.pass };
    sent.set(key, flight);
    trace.flights.push(flight);
  } else if (event.ph === "f") {
    arrived.push({ key, end: at, to: event.pid });
  }
}

/** A step computes the queries and heads of its pass, unless it has its own, as a token that is decoded. */
function withQueries(trace, slice) {
  const own = trace.passes.filter((pass) => pass.rank === slice.rank);
  const pass = own.at(-1) ?? {};
  slice.queries ??= pass.queries;
  slice.heads ??= pass.heads ?? [0, trace.attention?.heads ?? 1];
  return slice;
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
  for (const [begin, stride, count] of ranges)
    for (let i = 0; i < count; ++i) {
      const cell = Math.floor((begin + i * stride) / size);
      const whole = Math.min(size, tokens - cell * size);
      parts.set(cell, (parts.get(cell) ?? 0) + 1 / whole);
    }
  return parts;
}

/** How much of each visible cell has been computed at a time: [row][column], 1 when all heads are. */
function coverage(trace, time, pass = passAt(trace, time)) {
  const of = trace.attention;
  const covered = of.cells.map((row) => new Float64Array(row.length));
  for (const slice of trace.computes) {
    if (slice.pass !== pass || slice.end > time) continue;
    const heads = (slice.heads[1] - slice.heads[0]) / of.heads;
    const columns = partsOfCells(slice.keys, of.key_cell, of.keys);
    for (const [row, part] of partsOfCells(slice.queries, of.query_cell, of.queries))
      for (const [column, width] of columns) covered[row][column] += part * width * heads;
  }
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
  const flights = trace.flights.filter((flight) => flight.track === TRACKS.gradients && flight.pass === pass);
  const parcels = new Map();
  for (const { owner } of flights) parcels.set(owner, { owner, rank: owner });
  for (const flight of flights)
    if (flight.end <= time) parcels.set(flight.owner, { owner: flight.owner, rank: flight.to });
    else if (flight.begin <= time) parcels.set(flight.owner, { owner: flight.owner, flight });
  return [...parcels.values()];
}

/** What a rank does at a time: its slice of computing or waiting, or null. */
function doingOf(trace, rank, time) {
  const at = (slice) => slice.rank === rank && slice.begin <= time && time < slice.end;
  return trace.computes.find(at) ?? trace.waits.find(at) ?? null;
}

/** The state of a moment, in words: a line for each rank. */
function wordsOf(trace, time) {
  const lines = [];
  for (let rank = 0; rank < trace.ranks; ++rank) lines.push(`rank ${rank} ${wordsOfRank(trace, rank, time)}`);
  return lines;
}

function wordsOfRank(trace, rank, time) {
  const doing = doingOf(trace, rank, time);
  if (!doing) {
    const later = trace.computes.concat(trace.waits).some((slice) => slice.rank === rank && slice.begin >= time);
    return later ? "is between two steps" : "has ended";
  }
  if (doing.name === "wait" && doing.track >= TRACKS.allToAll) return "exchanges pieces with the others and waits for theirs";
  if (doing.name === "wait") {
    const flight = trace.flights.find((one) => one.to === rank && one.begin <= time && time < one.end);
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
    if (!trace.computes.some((slice) => slice.pass === pass)) continue; // `bench` measures messages alone, too
    const { visible, complete } = countCells(trace, trace.end, pass);
    if (complete < visible) sentences.push(`${visible - complete} of ${visible} visible cells are computed by no rank.`);
  }
  for (const { owner, rank } of gradientsAt(trace, trace.end))
    if (rank !== owner) sentences.push(`dK,dV of rank ${owner} end on rank ${rank ?? "none"}.`);
  return [...new Set(sentences)];
}
