// The three drawings of a trace at a time: the ring, the square, the lanes.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function colourOf(rank) {
  return `var(--rank${rank % 8})`;
}

function element(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

/**
 * The ranks on a circle. K,V that a rank computes with are inside of it, dK,dV outside, and parcels on their way between two
 * ranks: at least GAP pixels from both, so that no two labels are in one place.
 */
const GAP = 62, OUTSIDE = 1.46; // of the radius

class RingView {
  constructor(svg) {
    this.svg = svg;
  }

  load(trace) {
    this.trace = trace;
    this.svg.replaceChildren();
    const radius = trace.ranks === 1 ? 0 : 140;
    element("circle", { class: "track", cx: 210, cy: 210, r: radius }, this.svg);
    this.nodes = [];
    const size = trace.ranks > 8 ? 14 : 30;
    for (let rank = 0; rank < trace.ranks; ++rank) {
      const angle = (2 * Math.PI * rank) / trace.ranks - Math.PI / 2;
      const x = 210 + radius * Math.cos(angle), y = 210 + radius * Math.sin(angle);
      const circle = element("circle", { class: "rank", cx: x, cy: y, r: size, fill: colourOf(rank) }, this.svg);
      if (trace.ranks <= 8) element("text", { class: "name", x, y: y + 5 }, this.svg, `${rank}`);
      const inside = { x: 210 + (x - 210) * 0.56, y: 210 + (y - 210) * 0.56 };
      const does = element("text", { class: "does", x: 210 + (x - 210) * 0.48, y: inside.y + (y > 220 ? -16 : 26) }, this.svg, "");
      this.nodes.push({ x, y, circle, does, angle, inside });
    }
    this.parcels = element("g", {}, this.svg);
  }

  draw(time) {
    const { trace } = this;
    this.nodes.forEach(({ circle, does }, rank) => {
      const doing = doingOf(trace, rank, time);
      const computes = Boolean(doing && doing.name !== "wait");
      circle.classList.toggle("computes", computes);
      if (trace.ranks <= 8) does.textContent = computes ? "computes" : doing ? "waits" : "";
    });
    this.parcels.replaceChildren();
    for (let rank = 0; rank < trace.ranks; ++rank) this.drawHeld(rank, time);
    for (const gradient of gradientsAt(trace, time)) this.drawGradient(gradient, time);
    for (const flight of trace.flights)
      if (flight.begin <= time && time < flight.end && flight.track !== TRACKS.gradients) this.drawFlight(flight, time);
  }

  /** The K,V with which a rank computes, inside the circle of ranks. */
  drawHeld(rank, time) {
    const steps = this.trace.of[rank].computes.filter((slice) => slice.owner !== undefined);
    const held = steps.findLast((slice) => slice.begin <= time) ?? steps[0];
    if (held) this.drawParcel(this.nodes[rank].inside, held.owner, `K,V ${held.owner}`, "parcel");
  }

  drawGradient({ owner, rank, flight }, time) {
    const place = flight ? this.onCircle(flight, time, OUTSIDE) : this.at(this.nodes[rank].angle, OUTSIDE);
    this.drawParcel(place, owner, `dK,dV ${owner}`, "parcel gradient");
  }

  drawFlight(flight, time) {
    if (flight.track === TRACKS.kv) {
      const share = flight.to === (flight.from + 1) % this.trace.ranks ? 1 : OUTSIDE; // ranks between the two are passed outside
      this.drawParcel(this.onCircle(flight, time, share), flight.owner, `K,V ${flight.owner}`, "parcel");
    } else {
      const { x, y } = this.between(flight, time);
      element("circle", { class: "piece", cx: x, cy: y, r: 6, fill: colourOf(flight.from) }, this.parcels);
    }
  }

  drawParcel({ x, y }, owner, label, kind) {
    const width = label.length > 6 ? 62 : 46;
    element("rect", { class: kind, x: x - width / 2, y: y - 11, width, height: 22, rx: 5, fill: colourOf(owner) },
            this.parcels);
    element("text", { class: "label", x, y: y + 4 }, this.parcels, label);
  }

  at(angle, share) {
    return { x: 210 + 140 * share * Math.cos(angle), y: 210 + 140 * share * Math.sin(angle) };
  }

  /** A place on the way from a rank to the next; outside, where the way has no place for two parcels. */
  onCircle({ from, to, begin, end, leaves = begin, arrives = end }, time, share) {
    const way = (2 * Math.PI * ((to - from + this.trace.ranks) % this.trace.ranks)) / this.trace.ranks;
    if (time < leaves && 140 * way < 2 * GAP + 46) share = OUTSIDE;
    const gap = Math.min(GAP / (140 * share), way / 2);
    const part = Math.min(Math.max((time - leaves) / Math.max(arrives - leaves, 1e-9), 0), 1);
    return this.at(this.nodes[from].angle + gap + (way - 2 * gap) * part, share);
  }

  between({ from, to, begin, end }, time) {
    const a = this.nodes[from], b = this.nodes[to], part = (time - begin) / Math.max(end - begin, 1e-9);
    return { x: a.x + (b.x - a.x) * part, y: a.y + (b.y - a.y) * part };
  }
}

/** The square of queries and keys. What a rank has computed has its colour; what it computes now is lighter. */
class SquareView {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  load(trace) {
    this.trace = trace;
  }

  draw(time) {
    const { trace, context, canvas } = this;
    if (!trace.attention) return;
    const colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue(name).trim();
    const pass = passAt(trace, time);
    context.globalAlpha = 1;
    context.fillStyle = colour("--empty-cell");
    context.fillRect(0, 0, canvas.width, canvas.height);
    const ofRank = [...Array(8).keys()].map((rank) => colour(`--rank${rank}`));
    let left = MOST.rectangles;
    for (const slice of trace.ofPass.get(pass) ?? []) {
      if (slice.begin > time) continue;
      context.globalAlpha = slice.end <= time ? 1 : 0.4;
      context.fillStyle = ofRank[slice.rank % 8];
      left -= this.fill(slice);
      if (left < 0) break;
    }
    if (left < 0) this.fillCells(coverage(trace, time, pass), ofRank[0], colour("--empty-cell"));
    context.globalAlpha = 1;
    context.fillStyle = colour("--hidden-cell");
    const { cells } = trace.attention, tall = canvas.height / cells.length, wide = canvas.width / cells[0].length;
    cells.forEach((row, i) => [...row].forEach((cell, j) => {
      if (cell === ".") context.fillRect(j * wide, i * tall, wide, tall);
    }));
  }

  /** Heads are columns within a cell, as each rank of Ulysses computes some of them. Returns how many rectangles it draws. */
  fill({ queries, keys, heads }) {
    const { attention } = this.trace, { width, height } = this.canvas;
    const rows = this.spans(queries, attention.query_cell, attention.queries, height);
    const columns = heads[1] - heads[0] < attention.heads ? this.ofHeads(heads)
                                                          : this.spans(keys, attention.key_cell, attention.keys, width);
    for (const [top, tall] of rows) for (const [left, wide] of columns) this.context.fillRect(left, top, wide, tall);
    return rows.length * columns.length;
  }

  /** Instead of slices that are too many to draw each: the part of a cell that is computed. */
  fillCells(covered, colour, empty) {
    const { context, canvas } = this, tall = canvas.height / covered.length, wide = canvas.width / covered[0].length;
    covered.forEach((row, i) => row.forEach((part, j) => {
      for (const [fill, alpha] of [[empty, 1], [colour, Math.min(part, 1)]]) {
        context.fillStyle = fill;
        context.globalAlpha = alpha;
        context.fillRect(j * wide, i * tall, wide, tall);
      }
    }));
  }

  ofHeads([begin, end]) {
    const { cells, heads } = this.trace.attention, wide = this.canvas.width / cells[0].length;
    return [...cells[0]].map((_, i) => [(i + begin / heads) * wide, (wide * (end - begin)) / heads]);
  }

  /** [begin, length] in pixels. Tokens that are `stride` apart share a cell with others: each takes its part of it. */
  spans(ranges, cell, tokens, length) {
    const spans = [], pixels = length / tokens;
    if (ranges.length > MOST.cells) { // too many to draw each
      for (const [at, part] of partsOfCells(ranges, cell, tokens))
        spans.push([at * cell * pixels, part * Math.min(cell, tokens - at * cell) * pixels]);
      return spans;
    }
    for (const [begin, stride, count] of ranges) {
      if (stride === 1) {
        spans.push([begin * pixels, count * pixels]);
      } else if (cell < stride) {
        for (let i = 0; i < count; ++i) spans.push([(begin + i * stride) * pixels, pixels]);
      } else {
        const last = begin + (count - 1) * stride;
        for (let at = Math.floor(begin / cell) * cell; at <= last; at += cell)
          spans.push([(at + ((begin % stride) / stride) * cell) * pixels, (cell / stride) * pixels]);
      }
    }
    return spans;
  }
}

/** What each rank does over time. */
class LanesView {
  constructor(box, seek) {
    this.box = box;
    const follow = (event) => {
      const { left, width } = box.getBoundingClientRect();
      seek(Math.min(1, Math.max(0, (event.clientX - left) / width)));
    };
    box.addEventListener("pointerdown", (event) => {
      box.setPointerCapture(event.pointerId);
      follow(event);
    });
    box.addEventListener("pointermove", (event) => {
      if (box.hasPointerCapture(event.pointerId)) follow(event);
    });
  }

  load(trace) {
    this.trace = trace;
    const height = 22, all = height * trace.ranks, length = Math.max(trace.end, 1e-9);
    const svg = element("svg", { viewBox: `0 0 1000 ${all}`, height: all, preserveAspectRatio: "none" });
    const hatch = element("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg);
    element("path", { d: "M0 6 L6 0", stroke: "var(--line)", "stroke-width": 1.5 }, hatch);
    for (let rank = 0; rank < trace.ranks; ++rank)
      element("rect", { class: "lane", x: 0, y: rank * height + 2, width: 1000, height: height - 4 }, svg);
    const add = (slices, fill) => {
      let reached = -1;
      for (const { begin, end, rank } of slices) {
        const x = (begin / length) * 1000, right = (end / length) * 1000;
        if (right < reached + 0.2) continue; // too narrow to be seen
        reached = right;
        element("rect", { x, width: right - x, y: rank * height + 2, height: height - 4, fill }, svg);
      }
    };
    for (const { waits } of trace.of) add(waits, "url(#hatch)");
    trace.of.forEach(({ computes }, rank) => add(computes, colourOf(rank)));
    for (const { at } of trace.cuts)
      element("line", { class: "cut", transform: `translate(${(at / length) * 1000})`, y1: 0, y2: all }, svg);
    this.playhead = element("line", { class: "playhead", y1: 0, y2: all }, svg);
    this.box.replaceChildren(svg);
  }

  draw(time) {
    this.playhead.setAttribute("transform", `translate(${(time / Math.max(this.trace.end, 1e-9)) * 1000})`);
  }
}
