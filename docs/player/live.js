// A ring of the visitor's choice: the form, the address, the run, the verdict.
"use strict";

const SHOWS_PROGRESS = 500; // milliseconds

class Live {
  constructor(form) {
    this.form = form;
    this.fields = [...form.elements].filter((field) => field.name);
  }

  field(name) {
    return this.fields.find((one) => one.name === name);
  }

  /** The words of an address, and the form's first ones where none is given. Returns what is wrong, or "". */
  choose(address) {
    this.form.reset();
    const given = [...new URLSearchParams(address)];
    const wrong = given.find(([name, value], i) => {
      const field = this.field(name);
      if (!field || value === "" || given.findIndex(([other]) => other === name) < i) return true;
      if (field.type !== "number" || Number.isFinite(Number(value))) field.value = value; // else the browser complains
      return field.value !== value || !field.checkValidity();
    });
    if (!wrong) return "";
    this.form.reset();
    const what = this.field(wrong[0]) ? `a “${wrong[0]}”` : "a word";
    return `The address has ${what} that this page cannot take. This is the first choice instead.`;
  }

  /** The choice as an address: what is not the form's first choice. */
  address() {
    const isFirst = (field) => field.value === (field.defaultValue ?? [...field.options].find((one) => one.defaultSelected).value);
    const words = this.fields.filter((field) => field.name === "ranks" || !isFirst(field));
    return new URLSearchParams(words.map(({ name, value }) => [name, value])).toString();
  }

  /** \param before  a sentence that stands before the verdict */
  async run(before = "") {
    this.job?.stop();
    if (!this.form.reportValidity()) return;
    const begin = performance.now(), say = (text, isWrong) => {
      by("verdict").textContent = `${before} ${text}`.trim();
      by("verdict").classList.toggle("wrong", isWrong);
    };
    const words = new URLSearchParams(new FormData(this.form)).toString();
    const job = this.job = new Job(words, Number(this.field("ranks").value), (done) => {
      by("progress").hidden = by("stop").hidden = performance.now() - begin < SHOWS_PROGRESS;
      by("progress").value = done;
    });
    by("tables").hidden = true;
    say("It computes.", false);
    try {
      await job.run(await this.module);
      if (job === this.job) this.show(job, say, performance.now() - begin);
    } catch (error) {
      if (job !== this.job) return;
      say(error.message, true);
      this.last = { failed: error.message };
    } finally {
      if (job === this.job) by("progress").hidden = by("stop").hidden = true;
    }
  }

  show({ traces, told, arrays }, say, spent) {
    const events = traces.flatMap(readEvents);
    const checks = told.filter((one) => one.check), ranks = told.filter((one) => "rank" in one).sort((a, b) => a.rank - b.rank);
    const trace = readTrace(events), sentence = this.verdict(checks), missing = verdictOf(trace);
    this.last = { events, checks, arrays, trace };
    say([sentence, ...missing].join(" "), checks.some((one) => !one.right) || missing.length > 0);
    this.link();
    const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
    const end = Math.max(...ranks.map((rank) => rank.ends)), busy = ranks.reduce((sum, rank) => sum + rank.computes, 0);
    by("spent").textContent = `${Math.round(spent)} ms`;
    by("busy").textContent = `${Math.round((100 * busy) / (end * ranks.length))} % of ${number(1e6 * end)} µs`;
    fillRows(by("checks"), checks.map((one) => [one.check, one.error?.toExponential(1) ?? "not finite", one.bound.toExponential(1),
                                                number(one.tokens), one.right ? "right" : "wrong"]));
    fillRows(by("counts"), ranks.map((rank) => [rank.rank, rank.tokens, 1e6 * rank.computes, 1e6 * rank.waits, rank.bytes,
                                                rank.messages, rank.peak / 1024].map(number)));
    by("tables").hidden = false;
    by("scene").value = player.scene = "";
    const shown = (name) => this.field(name).selectedOptions[0].text;
    player.load(trace, `Computed now, in this page: ${ranks.length} ranks, ${this.field("tokens").value} tokens, mask: `
                + `${shown("mask")}, ${shown("placement")}, ${shown("partition")}. ${sentence}`,
                "Speeds are chosen, bytes are real: a rank computes and a link sends at the speed that you choose below.");
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) player.play();
  }

  /** In the words of docs/mistakes.md. */
  verdict(checks) {
    const id = this.field("mistake").value, wrong = checks.filter((one) => !one.right);
    const names = (all) => all.map((one) => one.check).join(", ");
    const mistake = id === "none" ? "" : `mistake: ${liveModule.mistakes[id]} (${id}).`;
    if (wrong.length > 0) return `Wrong: ${names(wrong)}.${mistake && ` The ${mistake}`}`;
    const right = `Right: ${names(checks)} agree with dense attention in double.`;
    return right + (mistake && ` This problem does not show the ${mistake}`);
  }

  /** To the row of the table of mistakes, on the site; in a clone that is Markdown. */
  link() {
    const id = this.field("mistake").value, href = `../mistakes.html#:~:text=${id.replaceAll("-", "%2D")}`;
    if (id === "none" || !document.querySelector("nav")) return;
    by("verdict").append(" ", Object.assign(document.createElement("a"), { href, textContent: `All about ${id}` }));
  }

  /** What the address asks for, if it is not a scene. */
  follow() {
    const words = location.hash.slice(1);
    if (!words.includes("=") && (words !== "" || this.last)) return;
    if (this.last) by("verdict").scrollIntoView({ block: "nearest" }); // not of a page that opens
    this.run(this.choose(words));
  }

  connect() {
    for (const [id, says] of Object.entries(liveModule.mistakes)) by("mistake").append(new Option(`${id}: ${says}`, id));
    by("made-from").textContent = liveModule.commit;
    if (!HAS_JSPI) {
      by("verdict").textContent = `${NO_JSPI} The scenes above are recorded, and play.`;
      by("run").disabled = true;
      return;
    }
    this.module = compiledModule(liveModule.wasm);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const address = `#${this.address()}`;
      if (location.hash === address) this.run();
      else location.hash = address;
    });
    by("stop").addEventListener("click", () => this.job.stop());
    addEventListener("hashchange", () => this.follow());
    this.follow();
  }
}

function fillRows(body, rows) {
  body.replaceChildren();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const cell of cells) row.insertCell().textContent = cell;
  }
}

const live = new Live(by("choice"));
live.connect();
