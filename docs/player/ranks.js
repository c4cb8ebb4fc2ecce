// Ranks in a page: each is an instance of one WebAssembly module, as under MPI a rank is a process: its own memory, its own
// stack. A message is a copy from one memory into another. Where a rank waits, the browser suspends its stack (JSPI).
"use strict";

const HAS_JSPI = typeof WebAssembly === "object" && typeof WebAssembly.Suspending === "function";
const NO_JSPI = "This browser cannot suspend WebAssembly, which a rank that waits needs: Chrome and Edge can from version 137 on, "
  + "Firefox from 153, Safari from 27.";
const MOST_MS = 40; // between two moments at which the page may draw

class Job {
  /** address: all words of a choice. The form sets onRest(), which is called when a rank rests. */
  constructor(address, ranks) {
    Object.assign(this, { address, left: ranks, done: 0, drawn: performance.now() }); // done: by rank 0, up to 1
    this.mail = new Map(); // the messages that are there, by sender, receiver and tag
    this.waiting = new Map(); // what takes the next message, likewise
    this.traces = new Array(ranks).fill("");
    this.told = [];
    this.arrays = {};
    this.failed = new Promise((_, reject) => { this.fail = (sentence) => reject(new Error(sentence)); });
    this.failed.catch(() => {}); // run() tells
  }

  /** What each rank returns. Throws an Error when they cannot end. */
  async run(module) {
    const instances = await Promise.all(this.traces.map((_, rank) => this.instance(module, rank)));
    if (this.stopped) return this.failed;
    const ends = instances.map(async (instance, rank) => {
      const returned = await WebAssembly.promising(instance.run)(rank);
      this.left -= 1;
      this.look();
      return returned;
    });
    return Promise.race([this.failed, Promise.all(ends)]);
  }

  async instance(module, rank) {
    let exports = null;
    const bytes = (at, size) => new Uint8Array(exports.memory.buffer, at, size); // the memory may grow
    ({ exports } = await WebAssembly.instantiate(module, this.imports(rank, bytes)));
    exports._initialize();
    const address = new TextEncoder().encode(this.address);
    bytes(exports.text(address.length), address.length).set(address);
    return exports;
  }

  /** What a rank can call, when it computes a ring. bytes: a part of its memory, by address and size */
  imports(rank, bytes) {
    const text = (at, size) => new TextDecoder().decode(bytes(at, size));
    const suspending = (call) => new WebAssembly.Suspending(call);
    const page = {
      send: (at, size, to, tag, arrives) => this.send(`${rank} ${to} ${tag}`, { bytes: bytes(at, size).slice(), arrives }),
      receive: suspending((at, size, from, tag) => this.receive(`${from} ${rank} ${tag}`, (message) => {
        if (message.bytes.length !== size)
          throw new Error(`Rank ${rank} expects ${size} bytes, and rank ${from} has sent ${message.bytes.length}.`);
        bytes(at, size).set(message.bytes);
        return message.arrives;
      })),
      rest: suspending((done) => this.rest(rank, done)),
      trace: (at, size) => { this.traces[rank] += text(at, size); },
      tell: (at, size) => { this.told.push(JSON.parse(text(at, size))); },
      fail: (at, size) => this.fail(text(at, size)),
      array: (name, letters, at, size) => {
        this.arrays[text(name, letters)] = new Float32Array(bytes(at, 4 * size).slice().buffer);
      },
    };
    return { page, wasi_snapshot_preview1: noFiles({}) };
  }

  send(way, message) {
    const take = this.waiting.get(way);
    this.waiting.delete(way);
    if (take) take(message);
    else if (this.mail.has(way)) this.mail.get(way).push(message);
    else this.mail.set(way, [message]);
  }

  receive(way, take) {
    if (this.stopped) return new Promise(() => {});
    const there = this.mail.get(way)?.shift();
    if (there) return take(there);
    return new Promise((resolve) => {
      this.waiting.set(way, resolve);
      this.look();
    }).then(take);
  }

  /** Ranks that all wait would wait for ever. */
  look() {
    if (this.left === 0 || this.waiting.size < this.left) return;
    const waits = [...this.waiting.keys()].map((way) => way.split(" ")).map(([from, to]) => `rank ${to} waits for rank ${from}`);
    this.fail(`Deadlock: ${waits.join(", ")}.`);
  }

  rest(rank, done) {
    if (this.stopped) return new Promise(() => {}); // for ever
    if (rank === 0) this.done = done;
    this.onRest();
    if (performance.now() - this.drawn < MOST_MS) return undefined;
    return new Promise((wake) => setTimeout(() => {
      this.drawn = performance.now();
      if (!this.stopped) wake();
    }));
  }

  stop() {
    this.stopped = true;
    this.fail("Stopped.");
  }
}

/** WASI with these calls, and no files: EBADF. */
function noFiles(calls) {
  return new Proxy(calls, { get: (all, name) => all[name] ?? (() => 8) });
}

/** The module of a file that has it as text, since a page from a disk cannot read others. */
async function compiledModule(base64) {
  const packed = await (await fetch(`data:application/octet-stream;base64,${base64}`)).blob();
  const bytes = await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  return WebAssembly.compile(bytes);
}
