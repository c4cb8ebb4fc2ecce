"""The player in a browser: `player_test.py [long]`, from a file:// address and from a site.

CHROME names the browser, else chromium or google-chrome; exit code 77 and a reason where there is none.
RING_ATTENTION_PLAYER names another folder of the player, such as one with a new module.
"""

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "player"))
import address
import build
import moving
import player_hostile

ROOT = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[1]))
PAGE = Path(os.environ.get("RING_ATTENTION_PLAYER", ROOT / "docs/player")) / "index.html"
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", ROOT / "build/release"))
LONG = "long" in sys.argv[1:]  # a thousand mutated traces, and nothing else
WIDTHS = (360, 800, 1400)
LAPTOP = (1280, 800)
MOST_IDLE = 0.1  # of a scene, in which no rank has an event
INCOMPLETE = {"step-too-few"}
WRONG = {"step-too-few", "hop-too-few"}
MOST_LINES, MOST_BYTES, MOST_PICTURE, LEAST_CONTRAST = 1200, 600 << 10, 60_000, 4.5


def browser():
    names = [os.environ.get("CHROME"), "chromium", "chromium-browser", "google-chrome"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Page:
    """A page of a headless browser, by the DevTools protocol over two pipes."""

    def __init__(self, chrome, folder):
        to_child, self.out = os.pipe()
        self.incoming, from_child = os.pipe()

        def connect():  # the browser reads 3 and writes 4
            os.dup2(to_child, 30)
            os.dup2(from_child, 31)
            os.dup2(30, 3)
            os.dup2(31, 4)

        self.process = subprocess.Popen(
            [
                chrome,
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self.number, self.buffer, self.complaints, self.requests, self.session = 0, b"", [], [], None
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait()

    def read(self):
        while b"\0" not in self.buffer:
            got = os.read(self.incoming, 1 << 16)
            if not got:
                raise RuntimeError("the browser has ended")
            self.buffer += got
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **words):
        self.number += 1
        message = {"id": self.number, "method": method, "params": words}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            self.note(answer)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def note(self, event):
        method, words = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(words["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Runtime.consoleAPICalled" and words["type"] in ("error", "warning"):
            self.complaints.append(str(words["args"]))
        elif method == "Log.entryAdded" and words["entry"]["level"] in ("error", "warning"):
            self.complaints.append(words["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(words["request"]["url"])

    def open(self, url):
        self.call("Page.navigate", url=url)
        if not self.until("document.readyState === 'complete' && location.href !== 'about:blank'", 20):
            raise RuntimeError(f"{url} does not load")

    def run(self, script):
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"].get("exception", {}).get("description", script))
        return done["result"].get("value")

    def until(self, condition, seconds=5):
        """Does the condition come true?"""
        give_up = time.monotonic() + seconds
        while not (true := self.run(condition)) and time.monotonic() < give_up:
            time.sleep(0.02)
        return true

    def press(self, key, code=None, text=None):
        words = {"key": key, "code": code or key, "windowsVirtualKeyCode": CODES.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **words, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **words)

    def look(self, width, dark=False, height=900, reduced=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        wishes = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=wishes)


CODES = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}

# Each text of the page and the contrast with what is behind it: the background of an ancestor, or a shape of the drawing.
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => rgb(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (rgb(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const all = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest(".hidden, script, option")) continue;
    const style = getComputedStyle(node), drawn = node.closest("svg");
    const shape = node.matches(".name, .label") ? node.previousElementSibling : null;
    const back = shape ? getComputedStyle(shape).fill : behind(node.parentElement && drawn ? drawn.parentElement : node);
    const front = drawn ? style.fill : style.color;
    const [a, b] = [light(front), light(back)];
    all.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.trim().slice(0, 40), front, back]);
  }
  return all;
})()"""


# Steps to the end, and lists the moments at which two labels of parcels, or a label and a rank, are in one place.
OVERLAPS = """(() => {
  const found = [];
  const look = () => {
    const boxes = [...document.querySelectorAll("#ring .parcel, #ring .does, #ring .rank")].map((one) => one.getBBox());
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
      const wide = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
      const tall = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
      if (wide > 0.5 && tall > 0.5) found.push([player.time, a.x, a.y, b.x, b.y].map(Math.round).join(" "));
    }));
  };
  player.seek(0);
  for (let i = 0; i < 10000 && player.time < player.trace.end; ++i) {
    const before = player.time;
    player.step(1);
    look();
    if (i < 50 && player.time < player.trace.end) {
      const reached = player.time;
      player.seek((before + reached) / 2);
      look();
      player.seek(reached);
    }
  }
  return found;
})()"""
# The same in docs/ring.svg, at 300 moments of its run.
PICTURE_OVERLAPS = """(() => {
  const found = [], animations = document.getAnimations();
  for (let i = 0; i < (animations.length > 0 ? 300 : 1); ++i) {
    for (const one of animations) { one.pause(); one.currentTime = i * 50; }
    const boxes = [...document.querySelectorAll("g.a")].filter((one) => getComputedStyle(one).opacity > 0.5)
      .map((one) => [one.firstChild.getBoundingClientRect(), one.textContent]);
    boxes.forEach(([a, name], k) => boxes.slice(k + 1).forEach(([b, other]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 0.5 && tall > 0.5) found.push(`${i * 50} ms: ${name} and ${other}`);
    }));
  }
  return found;
})()"""
# The part of the picture's square that the first frame fills in, which previews and print show.
FILLED = """(() => {
  for (const one of document.getAnimations()) { one.pause(); one.currentTime = 0; }
  const cells = [...document.querySelectorAll(".cell")];
  return cells.reduce((sum, one) => sum + new DOMMatrix(getComputedStyle(one).transform).a, 0) / cells.length;
})()"""
# The part of a trace in which no rank computes or waits and no message is on its way.
IDLE = """(() => {
  const { computes, waits, flights, end } = player.trace;
  let reached = 0, idle = 0;
  for (const one of computes.concat(waits, flights).sort((a, b) => a.begin - b.begin)) {
    idle += Math.max(0, one.begin - reached);
    reached = Math.max(reached, one.end);
  }
  return (idle + end - reached) / end;
})()"""
TO_END = "player.seek(0); for (let i = 0; i < 10000 && player.time < player.trace.end; ++i) player.step(1)"


class Checks:
    def __init__(self, page):
        self.page, self.failures = page, []

    def check(self, right, what):
        if not right:
            self.failures.append(what)

    def scenes(self):
        """Each is played to its end; then the square is complete, but in the scenes of mistakes."""
        page = self.page
        names = page.run("recordedScenes.map((scene) => scene.name)")
        self.check(len(names) >= 13, f"there are {len(names)} scenes")
        for name in names:
            page.run(f"location.hash = '{name}'")
            self.check(page.until(f"player.scene === '{name}'"), f"{name}: the address does not choose it")
            # the end by steps: the state of each moment is drawn
            overlaps = page.run(OVERLAPS if page.run("location.protocol === 'file:'") else TO_END)  # once is enough
            self.check(not overlaps, f"{name}: labels overlap: {overlaps and overlaps[:3]}")
            passes = page.run("""[...Array(passAt(player.trace, player.trace.end) + 1).keys()]
                                 .map((pass) => countCells(player.trace, player.trace.end, pass))""")
            for cells in passes:
                complete = cells["complete"] == cells["visible"]
                self.check(complete != (name in INCOMPLETE), f"{name}: {cells}")
                self.check(cells["twice"] == 0, f"{name}: cells are computed twice: {cells}")
            self.check((page.run("player.trace.verdict.length") > 0) == (name in WRONG), f"{name}: the verdict is wrong")
            self.check(page.run("player.time === player.trace.end"), f"{name}: steps do not reach the end")
            self.check(page.run(IDLE) <= MOST_IDLE, f"{name}: nothing happens for {page.run(IDLE):.2f} of the time")
            whole = page.run(f"Math.max(...recordedScenes.find((one) => one.name === '{name}').events.map((one) => one.ts ?? 0))")
            shown = page.run("player.trace.cuts.reduce((sum, one) => sum + one.cut, player.trace.end)")
            self.check(abs(whole - shown) < 0.01, f"{name}: {shown} of {whole} microseconds are shown or said to be cut")
            self.owners(name)

    def owners(self, name):
        """The keys of a step are those of the rank that the program says: where the owner's queries are."""
        wrong = self.page.run("""player.trace.computes.filter((slice) => slice.owner !== undefined).filter((slice) => {
            const of = player.trace.passes.find((pass) => pass.rank === slice.owner && pass.name === "forward");
            return JSON.stringify(slice.keys) !== JSON.stringify(of.queries);
          }).length""")
        self.check(wrong == 0, f"{name}: {wrong} steps have the keys of another rank than the trace says")

    def opening(self):
        """A scene opens with a part of its square filled in, and plays once; where motion is unwanted it stands still."""
        page = self.page
        filled = "countCells(player.trace, player.time).complete"
        for reduced in (True, False):
            page.look(800, reduced=reduced)
            page.run("location.hash = 'window'")
            page.until("player.scene === 'window'")
            page.run("location.hash = 'overlapped'")
            page.until("player.scene === 'overlapped'")
            self.check(page.run(f"0 < {filled} && {filled} < player.trace.attention.cells.length ** 2"),
                       "a scene opens with an empty or a full square")
            self.check(page.run("player.playing") != reduced, f"reduced motion: {reduced}, and it plays the other way")
        page.run("by('speed').value = 3; player.seek(player.trace.end * 0.9)")
        self.check(page.until("!player.playing && player.time === player.trace.end"), "a scene does not end by itself")
        page.run("by('speed').value = 1")

    def playing(self):
        """Time goes by itself, with the keyboard alone: Tab to the button, space."""
        page = self.page
        page.run("location.hash = 'overlapped'; document.activeElement.blur(); scrollTo(0, 0)")
        page.until("player.scene === 'overlapped'")
        page.run("player.seek(0)")
        page.press("ArrowRight")
        stepped = page.run("player.time")
        self.check(stepped > 0, "the right arrow does not step")
        page.press("ArrowLeft")
        self.check(page.run("player.time") < stepped, "the left arrow does not step back")
        page.press("End")
        self.check(page.run("player.time === player.trace.end"), "End does not go to the end")
        self.check("nothing is missing" in page.run("by('summary').textContent"), "the end is not said in words")
        page.press("Home")
        page.press(" ", "Space", " ")
        self.check(page.until("player.playing && player.time > 0"), "space does not play")
        page.press(" ", "Space", " ")
        self.check(page.run("!player.playing"), "space does not stop")
        reached = set()
        for _ in range(60):
            page.press("Tab", text="\t")
            reached.add(page.run("document.activeElement.name || document.activeElement.id || document.activeElement.tagName"))
        wanted = set("scene begin back play step end speed time file run SUMMARY".split())
        wanted |= set(page.run("live.fields.map((field) => field.name)"))
        self.check(wanted <= reached, f"Tab does not reach {wanted - reached}")
        on_site = page.run("location.protocol !== 'file:'")
        links = page.run("document.querySelectorAll('nav a').length")
        self.check(links == (len(build.NAVIGATION) if on_site else 0), f"the navigation has {links} links")
        page.run("by('scene').focus()")
        page.press("ArrowDown")
        self.check(page.until("player.scene !== 'overlapped'"), "the keyboard chooses no scene")
        page.run("player.stop(); by('play').focus()")
        page.press("Enter", text="\r")
        self.check(page.run("player.playing"), "Enter on the button does not play")
        page.run("player.stop(); player.seek(player.trace.end / 2)")
        self.check("rank 0" in page.run("by('announce').textContent"), "a screen reader is told nothing")

    def dragging(self):
        page = self.page
        box = page.run(
            "by('lanes').scrollIntoView({block: 'center'}), by('lanes').getBoundingClientRect().toJSON()"
        )
        y = box["y"] + box["height"] / 2
        for kind, share in (("mousePressed", 0.2), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
            page.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box["x"] + share * box["width"],
                y=y,
                button="left",
                buttons=1,
                clickCount=1,
            )
        self.check(abs(page.run("player.time / player.trace.end") - 0.5) < 0.02, "dragging in the lanes does not move time")
        page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        page.call(
            "Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": box["x"] + 0.25 * box["width"], "y": y}]
        )
        page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.check(abs(page.run("player.time / player.trace.end") - 0.25) < 0.02, "a touch in the lanes does not move time")
        page.call("Emulation.setTouchEmulationEnabled", enabled=False)

    def own_file(self, folder):
        """A trace that the program writes now, and the files of a job that died."""
        program = BUILD / "ring-attention"
        if not program.exists():
            return
        file = Path(folder) / "trace.json"
        subprocess.run(
            [BUILD / "mpirun", "-n", "2", program, *"decode --random 1,2,70,8 --trace".split(), file],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.open_texts([file.read_text(encoding="utf-8")])
        self.check(self.page.run("player.trace.computes.length") > 2 * 35, "a trace of now is not played")
        self.check(self.page.run("player.trace.verdict.length") == 0, "a trace of now: the square is not complete")
        died = [
            f'[{{"ph":"B","pid":{rank},"tid":2,"ts":{rank + 1},"name":"hop","args":{{"owner":0}}}},\n'
            f'{{"ph":"B","pid":{rank},"tid":2,"ts":9,"name":"wait"}},\n{{"ph":"E","pi'
            for rank in range(2)
        ]
        self.open_texts(died)
        self.page.run("player.seek(player.trace.end - 0.5)")
        self.check(self.page.run("player.trace.ranks") == 2, "files of a job that died do not open")
        self.check(self.page.run("player.trace.verdict.length") == 1, "a job that died looks like one that ended")

    def open_texts(self, texts):
        self.page.run(f"player.open({json.dumps(texts)}.map((text, i) => new File([text], `trace.rank${{i}}`)))")

    def looks(self):
        """No horizontal scrolling; contrast in both modes."""
        page = self.page
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.look(LAPTOP[0], height=LAPTOP[1])
        for name in page.run("recordedScenes.map((scene) => scene.name)"):
            page.run(f"scrollTo(0, 0); player.loadScene('{name}'); player.stop(); player.seek(player.trace.end * 0.7)")
            low = page.run("Math.max(...['ring', 'square', 'lanes', 'moment'].map((id) => by(id).getBoundingClientRect().bottom))")
            self.check(low <= LAPTOP[1], f"{name}: the state or the lanes end at {low} px on a laptop")
        page.run("player.loadScene('backward'); player.stop(); player.seek(player.trace.end * 0.7)")
        for dark in (False, True):
            for width in WIDTHS:
                page.look(width, dark)
                wide = page.run("[document.documentElement.scrollWidth, innerWidth]")
                self.check(wide[0] <= width, f"{width} px: the page is {wide[0]} px wide")
            for contrast, text, front, back in page.run(CONTRAST):
                self.check(
                    contrast >= LEAST_CONTRAST, f"{'dark' if dark else 'light'}: {contrast:.1f}: {text}: {front} on {back}"
                )
        page.look(800)


def moving_picture(page):
    """docs/ring.svg is drawn from the recorded scene, moves without a script, and stands still where motion is unwanted."""
    file = ROOT / "docs/ring.svg"
    text = file.read_text(encoding="utf-8")
    if text != moving.ring(address.recorded_scenes()["overlapped"]):
        yield "docs/ring.svg is not what docs/player/moving.py draws from scenes.js. Remedy: docs/player/record.py"
    if len(text.encode()) > MOST_PICTURE or "<script" in text:
        yield f"docs/ring.svg has a script, or is above {MOST_PICTURE} bytes"
    for reduced in (False, True):
        page.look(900, reduced=reduced)
        page.open(file.as_uri())
        moves = page.run("document.getAnimations().filter((one) => one.playState === 'running').length")
        if (moves == 0) != reduced:
            yield f"docs/ring.svg: {moves} elements move where reduced motion is {reduced}"
        filled = page.run(FILLED)
        if not 0 < filled < 1:
            yield f"docs/ring.svg: {filled} of the square is filled in the first frame"
        overlaps = page.run(PICTURE_OVERLAPS)
        if overlaps:
            yield f"docs/ring.svg: labels overlap: {overlaps[:3]}"


def files_are_small():
    own = [PAGE.parent / name for name in ("trace.js", "views.js", "player.js", "ranks.js", "form.js", "live.js", "player.css")]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in own)
    if lines > MOST_LINES:
        yield f"the player has {lines} lines: at most {MOST_LINES}"
    together = sum(file.stat().st_size for file in PAGE.parent.glob("*.*"))
    if together > MOST_BYTES:
        yield f"the player's folder has {together} bytes: at most {MOST_BYTES}"


def failures_at(page, url, folder):
    checks = Checks(page)
    page.look(800)
    page.open(url)
    page.until("Boolean(live.last)", 20)  # the page computes a first ring
    parts = [checks.scenes, checks.opening, checks.playing, checks.dragging]
    parts += [lambda: checks.own_file(folder), checks.looks]
    for part in [] if LONG else parts:
        part()
    if url == PAGE.as_uri():  # once is enough
        checks.failures += player_hostile.failures(page, 1000 if LONG else 100)
        checks.failures += [*moving_picture(page), *files_are_small()]
    return checks.failures


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def main(failures, file=PAGE):
    """:param failures: of an open browser, at an address, with a folder to write to: from the disk, and as on the site"""
    chrome = browser()
    if chrome is None:
        print("skipped: no browser. Remedy: install chromium, or set CHROME.")
        return 77
    found = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the browser may still write to it
        build.copy_pages(Path(folder) / "site")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=f"{folder}/site"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for url in (file.as_uri(), f"http://127.0.0.1:{server.server_port}/{file.parent.name}/index.html"):
            with contextlib.closing(Page(chrome, f"{folder}/{len(url)}")) as page:
                found += [f"{url}: {failure}" for failure in [*failures(page, url, folder), *page.complaints]]
                base = url.rsplit("/", 2)[0]
                found += [f"{url}: something is loaded from elsewhere: {request[:80]}" for request in page.requests
                          if not request.startswith((base, "data:", "blob:", (ROOT / "docs").as_uri()))]
    print("\n".join(found) or f"{chrome}: nothing to complain about")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(failures_at))
