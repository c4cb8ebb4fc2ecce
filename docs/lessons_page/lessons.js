// The lessons' programs: the form, the address, a run. Each rank is an instance of the module (ranks.js).
"use strict";

class Exit extends Error {
  constructor(code) {
    super();
    this.code = code;
  }
}

class Program extends Job {
  /** print: takes what the ranks write, as it comes */
  constructor(lesson, ranks, flags, print) {
    super([ranks, lesson, ...flags, ""].join("\n"), ranks, () => {});
    this.print = print;
    this.begun = []; // the line of each rank that has no end yet, so that lines of ranks do not mix
  }

  imports(rank, bytes) {
    const suspending = (call) => new WebAssembly.Suspending(call), decoder = new TextDecoder();
    const number = (at, value) => { new DataView(bytes(at, 4).buffer).setUint32(at, value, true); return 0; };
    const yields = async () => { await this.rest(rank, 0); };
    const page = { // of src/live/mpi
      put: (at, size, to, channel) => this.send(`${rank} ${to} ${channel}`, bytes(at, size).slice()),
      take: suspending(async (at, room, from, channel) => {
        await this.rest(rank, 0); // else a stretch of messages would freeze the page
        return this.receive(`${from} ${rank} ${channel}`, (message) => {
          if (message.length > room)
            throw new Error(`Rank ${rank} has room for ${room} bytes, and rank ${from} has sent ${message.length}.`);
          bytes(at, message.length).set(message);
          return message.length;
        });
      }),
      there: suspending((from, channel) => (this.mail.get(`${from} ${rank} ${channel}`)?.length ? 1 : yields().then(() => 0))),
    };
    const calls = {
      clock_time_get: (clock, precision, at) => {
        new DataView(bytes(at, 8).buffer).setBigUint64(at, BigInt(Math.round(1e6 * performance.now())), true);
        return 0;
      },
      fd_write: suspending((file, parts, count, written) => {
        let all = 0;
        for (let part = parts; part < parts + 8 * count; part += 8) {
          const [at, size] = new Uint32Array(bytes(part, 8).slice().buffer);
          this.begun[rank] = (this.begun[rank] ?? "") + decoder.decode(bytes(at, size), { stream: true });
          all += size;
        }
        const end = this.begun[rank].lastIndexOf("\n") + 1;
        this.print(this.begun[rank].slice(0, end));
        this.begun[rank] = this.begun[rank].slice(end);
        number(written, all);
        return this.rest(rank, 0)?.then(() => 0) ?? 0;
      }),
      fd_fdstat_get: (file, at) => { // a terminal: lines are written as they come
        bytes(at, 24).fill(0);
        bytes(at, 1)[0] = 2;
        return 0;
      },
      environ_sizes_get: (count, size) => number(count, 0) || number(size, 0),
      sched_yield: suspending(() => yields().then(() => 0)),
      poll_oneoff: suspending((asked, happened, count, events) => yields().then(() => { // a sleep
        bytes(happened, 32).fill(0);
        return number(events, 1);
      })),
      proc_exit: (code) => { throw new Exit(code); },
    };
    return { page, wasi_snapshot_preview1: noFiles(calls) };
  }
}

class Page {
  constructor(form) {
    this.fields = form.elements;
    if (!HAS_JSPI || !window.lessonsModule) {
      this.say(HAS_JSPI ? "This page lacks its module, which `make live` makes." : NO_JSPI);
      this.fields.run.disabled = true;
      return;
    }
    this.module = compiledModule(lessonsModule.wasm);
    this.fields.lesson.addEventListener("change", () => this.defaults());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const { lesson, ranks, flags } = this.fields, words = new URLSearchParams({ ranks: ranks.value, flags: flags.value });
      const address = `#${lesson.value}?${words}`;
      if (location.hash === address) this.run();
      else location.hash = address;
    });
    this.fields.stop.addEventListener("click", () => this.job.stop());
    addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  say(text) {
    document.getElementById("verdict").textContent = text;
  }

  /** The lesson's own number of ranks. */
  defaults() {
    const { lesson, ranks, flags } = this.fields, own = lesson.selectedOptions[0].dataset.ranks;
    ranks.value = own ?? 1;
    ranks.disabled = !own;
    flags.value = "";
  }

  /** The address: #05_blocking_ring, and perhaps ?ranks=3&flags=--seq+100. */
  follow() {
    const [name, words] = location.hash.slice(1).split("?"), given = new URLSearchParams(words);
    const { lesson, ranks, flags } = this.fields;
    if (![...lesson.options].some((one) => one.value === name)) return;
    lesson.value = name;
    this.defaults();
    if (!ranks.disabled) ranks.value = given.get("ranks") ?? ranks.value;
    flags.value = given.get("flags") ?? "";
    this.run();
  }

  async run() {
    const { lesson, ranks, flags, stop } = this.fields, output = document.getElementById("output");
    this.job?.stop();
    if (!lesson.form.reportValidity()) return;
    output.replaceChildren();
    const job = this.job = new Program(lesson.value, Number(ranks.value), flags.value.split(/\s+/).filter(Boolean), (text) => {
      if (job === this.job) output.append(text);
    });
    this.last = null;
    stop.hidden = false;
    this.say("It runs.");
    let end = null;
    try {
      end = { code: Math.max(...await job.run(await this.module)) };
    } catch (error) {
      end = error instanceof Exit ? { code: error.code } : { failed: error.message };
    }
    job.stop(); // ranks that still run
    if (job !== this.job) return;
    output.append(...job.begun.filter(Boolean));
    stop.hidden = true;
    const meaning = ["no check failed", "a check failed", "a wrong flag, or another error"][end.code];
    this.say(end.failed ?? `Exit code ${end.code}${meaning ? `: ${meaning}` : ""}.`);
    this.last = { ...end, text: output.textContent };
  }
}

const page = new Page(document.getElementById("program"));
