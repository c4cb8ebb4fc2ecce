// The form of a page that computes: its choice is the address, and ranks run it.
"use strict";

const by = (id) => document.getElementById(id);
const SHOWS_PROGRESS = 500; // milliseconds

/** Of a page: newJob() makes the Job of the choice, show(job, milliseconds) shows what it has computed and keeps it in `last`. */
class RunForm {
  constructor(form) {
    this.form = form;
    this.fields = [...form.elements].filter((field) => field.name);
    this.before = "";
  }

  field(name) {
    return this.fields.find((one) => one.name === name);
  }

  /** The words of an address, and the form's first ones where none is given. Returns what is wrong, or "". */
  choose(address) {
    this.form.reset();
    this.fields[0].dispatchEvent(new Event("change")); // other fields may depend on it
    const given = [...new URLSearchParams(address)];
    const wrong = given.find(([name, value], i) => {
      const field = this.field(name);
      if (!field || field.disabled || value === "" || given.findIndex(([other]) => other === name) < i) return true;
      if (field.type !== "number" || Number.isFinite(Number(value))) field.value = value; // else the browser complains
      field.dispatchEvent(new Event("change"));
      return field.value !== value || !field.checkValidity();
    });
    if (!wrong) return "";
    this.choose("");
    const what = this.field(wrong[0]) ? `a “${wrong[0]}”` : "a word";
    return `The address has ${what} that this page cannot take. This is the first choice instead.`;
  }

  /** The choice as an address: what is not the form's first choice. */
  address() {
    const isFirst = (field) => field.value === (field.defaultValue ?? [...field.options].find((one) => one.defaultSelected).value);
    const words = this.fields.filter((field, i) => i === 0 || !(field.disabled || isFirst(field)));
    return new URLSearchParams(words.map(({ name, value }) => [name, value])).toString();
  }

  say(text, isWrong = false) {
    by("verdict").textContent = `${this.before} ${text}`.trim();
    by("verdict").classList.toggle("wrong", isWrong);
  }

  /** \param before  a sentence that stands before the verdict */
  async run(before = "") {
    this.job?.stop();
    if (!this.form.reportValidity()) return;
    const begin = performance.now(), job = this.job = this.newJob();
    job.onRest = () => {
      by("running").hidden = performance.now() - begin < SHOWS_PROGRESS;
      by("progress")?.setAttribute("value", job.done);
    };
    this.before = before;
    this.say("It computes.");
    try {
      await job.run(await this.module);
      if (job === this.job) this.show(job, performance.now() - begin);
    } catch (error) {
      if (job !== this.job) return;
      this.say(error.message, true);
      this.last = { failed: error.message };
    } finally {
      if (job === this.job) by("running").hidden = true;
    }
  }

  /** What the address asks for, if it is not a scene. */
  follow() {
    const words = location.hash.slice(1);
    if (!words.includes("=") && (words !== "" || this.last)) return;
    if (this.last) by("verdict").scrollIntoView({ block: "nearest" }); // not of a page that opens
    this.run(this.choose(words));
  }

  /** \param otherwise  what is said after the reason why the page cannot compute */
  connect(module, otherwise = "") {
    if (!HAS_JSPI || !module) {
      this.say(`${HAS_JSPI ? "This page lacks its module, which `make lessons-module` makes." : NO_JSPI} ${otherwise}`);
      by("run").disabled = true;
      return;
    }
    this.module = compiledModule(module);
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
