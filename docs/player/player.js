// The page: scenes, time, keys, files. `player` is for the test, too.
"use strict";

const SECONDS = 14; // of a scene, at normal speed
const OPENS = 0.45; // of a scene: where its square is partly filled

class Player {
  constructor() {
    this.views = [new RingView(by("ring")), new SquareView(by("square")),
                  new LanesView(by("lanes"), (part) => this.go(part * this.trace.end))];
    this.playing = false;
  }

  /** Shows a trace from its begin on. */
  load(trace, about, recorded) {
    this.stop();
    this.trace = trace;
    by("about").textContent = about;
    const cut = trace.cuts.reduce((sum, one) => sum + one.cut, 0);
    by("recorded").textContent = recorded
      + (cut > 0 ? ` ${milliseconds(cut)} of ${milliseconds(trace.end + cut)} are cut: no rank has an event then.` : "");
    by("square-figure").hidden = !trace.attention;
    by("state").replaceChildren(...trace.of.map(() => document.createElement("li")));
    for (const view of this.views) view.load(trace);
    this.seek(0);
  }

  loadScene(name) {
    const scene = recordedScenes.find((one) => one.name === name);
    if (!scene) return;
    by("scene").value = name;
    this.scene = name;
    this.load(readTrace(scene.events), scene.text, `${scene.command.includes("#") ? "Computed" : "Recorded"} from: ${scene.command}. Lesson ${scene.lesson}.`);
    this.seek(OPENS * this.trace.end);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.play();
  }

  seek(time) {
    this.time = Math.min(Math.max(time, 0), this.trace.end);
    this.draw();
    if (!this.playing) this.announce();
  }

  /** Stops at a time. */
  go(time) {
    this.stop();
    this.seek(time);
  }

  draw() {
    for (const view of this.views) view.draw(this.time);
    by("time").value = Math.round((1000 * this.time) / Math.max(this.trace.end, 1e-9));
    by("time").setAttribute("aria-valuetext", `${milliseconds(this.time)} of ${milliseconds(this.trace.end)}`);
    by("summary").textContent = this.summary();
    by("summary").classList.toggle("wrong", this.time >= this.trace.end && this.trace.verdict.length > 0);
    wordsOf(this.trace, this.time).forEach((line, i) => {
      const item = by("state").children[i];
      if (item.textContent !== line) item.textContent = line;
    });
  }

  summary() {
    const { trace, time } = this, parts = [`${milliseconds(time)} of ${milliseconds(trace.end)}`];
    if (trace.attention) {
      const { visible, complete } = countCells(trace, time);
      const { name } = trace.of[0].passes[passAt(trace, time)] ?? { name: "attention" };
      parts.push(`${name}: ${complete} of ${visible} visible cells are computed`);
    }
    const parcels = trace.flights.filter((one) => one.owner !== undefined && one.begin <= time && time < one.end);
    if (parcels.length > 0)
      parts.push(`on their way: ${parcels.map((one) => `${parcelName(one)} to rank ${one.to}`).join(", ")}`);
    const verdict = time >= trace.end ? trace.verdict : [];
    if (time >= trace.end && verdict.length === 0) parts.push("nothing is missing");
    return `${parts.join("; ")}. ${verdict.join(" ")}`.trim();
  }

  announce() {
    by("announce").textContent = `${by("summary").textContent} ${wordsOf(this.trace, this.time).join("; ")}.`;
  }

  step(direction) {
    const later = this.trace.moments.filter((moment) => direction * (moment - this.time) > 1e-6);
    this.go((direction > 0 ? later[0] : later.at(-1)) ?? this.time);
  }

  play() {
    if (this.playing) return;
    if (this.time >= this.trace.end) this.time = 0;
    this.playing = true;
    by("play").textContent = "Stop";
    let last = performance.now();
    const frame = (now) => {
      if (!this.playing) return;
      const speed = Number(by("speed").value);
      this.seek(this.time + ((now - last) / 1000) * (this.trace.end / SECONDS) * speed);
      last = now;
      if (this.time >= this.trace.end) this.stop();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  stop() {
    if (!this.playing) return;
    this.playing = false;
    by("play").textContent = "Play";
    this.announce();
  }

  async open(files) {
    const name = [...files].map((file) => file.name).join(", ");
    try {
      const texts = await Promise.all([...files].map((file) => file.text()));
      const trace = readTrace(texts.flatMap(readEvents));
      if (trace.moments.length < 2) throw new Error("it has no step of an attention and no message");
      by("scene").value = "";
      this.load(trace, `Your trace: ${name}.`, "");
    } catch (error) {
      by("about").textContent = `${name} cannot be played: ${error.message}.`;
    }
  }
}

function milliseconds(time) {
  return `${(time / 1000).toFixed(time < 10000 ? 2 : 1)} ms`;
}

/** Keys of the page press the buttons that name them, where the focus is on nothing that has keys of its own. */
function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, input, summary, a")) return;
  if (event.key === " " && event.target.closest("button")) return;
  const key = event.key === " " ? "Space" : event.key;
  const button = [...document.querySelectorAll("button")].find((one) => one.getAttribute("aria-keyshortcuts") === key);
  if (!button) return;
  event.preventDefault();
  button.click();
}

const player = new Player();
for (const lesson of [...new Set(recordedScenes.map((scene) => scene.lesson))].sort()) {
  const group = document.createElement("optgroup");
  group.label = `Lesson ${lesson}`;
  for (const { name, title } of recordedScenes.filter((scene) => scene.lesson === lesson)) group.append(new Option(title, name));
  by("scene").append(group);
}
by("scene").addEventListener("change", () => { location.hash = by("scene").value; });
by("begin").addEventListener("click", () => player.go(0));
by("end").addEventListener("click", () => player.go(player.trace.end));
by("back").addEventListener("click", () => player.step(-1));
by("step").addEventListener("click", () => player.step(1));
by("play").addEventListener("click", () => (player.playing ? player.stop() : player.play()));
by("time").addEventListener("input", () => player.go((Number(by("time").value) / 1000) * player.trace.end));
by("file").addEventListener("change", () => player.open(by("file").files));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  player.open(event.dataTransfer.files);
});
addEventListener("keydown", onKey);
addEventListener("hashchange", () => player.loadScene(location.hash.slice(1)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => player.draw());
player.loadScene(recordedScenes.some(({ name }) => `#${name}` === location.hash) ? location.hash.slice(1) : "overlapped");
