// A ring of the visitor's choice: what it has computed, in tables and as a trace; the verdict.
"use strict";

class Live extends RunForm {
  newJob() {
    by("tables").hidden = true;
    return new Job(new URLSearchParams(new FormData(this.form)).toString(), Number(this.field("ranks").value));
  }

  show({ traces, told, arrays }, spent) {
    const events = traces.flatMap(readEvents);
    const checks = told.filter((one) => one.check), ranks = told.filter((one) => "rank" in one).sort((a, b) => a.rank - b.rank);
    const trace = readTrace(events), sentence = this.verdict(checks), missing = trace.verdict;
    this.last = { events, checks, arrays, trace };
    this.say([sentence, ...missing].join(" "), checks.some((one) => !one.right) || missing.length > 0);
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
}

function fillRows(body, rows) {
  body.replaceChildren();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const cell of cells) row.insertCell().textContent = cell;
  }
}

for (const [id, says] of Object.entries(liveModule.mistakes)) by("mistake").append(new Option(`${id}: ${says}`, id));
by("made-from").textContent = liveModule.commit;
const live = new Live(by("choice"));
live.connect(liveModule.wasm, "The scenes above are recorded, and play.");
