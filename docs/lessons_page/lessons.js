// The lessons' programs: what a rank of theirs can call, and what it writes. Each rank is an instance of the module (ranks.js).
"use strict";

class Program extends Job {
  /** print: takes what the ranks write, as it comes */
  constructor(lesson, ranks, flags, print) {
    super([ranks, lesson, ...flags, ""].join("\n"), ranks);
    this.print = print;
    this.begun = []; // the line of each rank that has no end yet, so that lines of ranks do not mix
  }

  /** Until all ranks have returned, or one has called exit(); `code` is the exit code. */
  async run(module) {
    const exit = new Promise((resolve) => { this.exit = resolve; });
    try {
      this.code = await Promise.race([exit, super.run(module).then((codes) => Math.max(...codes))]);
    } finally {
      this.stop();
      this.print(this.begun.join(""));
    }
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
      proc_exit: suspending((code) => new Promise(() => this.exit(code))), // for ever
    };
    return { page, wasi_snapshot_preview1: noFiles(calls) };
  }
}

class LessonsPage extends RunForm {
  constructor(form) {
    super(form);
    this.field("lesson").addEventListener("change", () => this.defaults());
    this.connect(window.lessonsModule?.wasm);
  }

  /** The lesson's own number of ranks. */
  defaults() {
    const [lesson, ranks, flags] = this.fields, own = lesson.selectedOptions[0]?.dataset.ranks;
    ranks.value = own ?? 1;
    ranks.disabled = !own;
    flags.value = "";
  }

  newJob() {
    const [lesson, ranks, flags] = this.fields.map((field) => field.value);
    by("output").replaceChildren();
    const job = new Program(lesson, Number(ranks), flags.split(/\s+/).filter(Boolean), (text) => {
      if (job === this.job) by("output").append(text);
    });
    return job;
  }

  show({ code }) {
    const meaning = ["no check failed", "a check failed", "a wrong flag, or another error"][code];
    this.say(`Exit code ${code}${meaning ? `: ${meaning}` : ""}.`);
    this.last = { code };
  }
}

const page = new LessonsPage(by("program"));
