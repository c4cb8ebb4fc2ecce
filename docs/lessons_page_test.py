"""The lessons' programs in a browser, from a file:// address and from a site: right runs, mistakes, flags.

Exit code 77 and a reason where there is no browser, or where the module has not been made.
"""

import json
import re
import sys

import player_test
from player_test import ROOT

PAGE = ROOT / "docs/lessons_page/index.html"
RUN = """(async (lesson, flags) => {
  await page.run(page.choose(new URLSearchParams(flags ? { lesson, flags } : { lesson })));
  return { ...page.last, text: by("output").textContent };
})"""


def complaint(page, lesson, flags, code, words):
    """If the program does not end with this exit code and a text that has the words."""
    done = page.run(f"{RUN}({json.dumps(lesson)}, {json.dumps(flags)})")
    if done.get("code") != code or not re.search(words, done.get("text", "")):
        yield f"{lesson} {flags}: {done.get('failed') or done['code']}: {done.get('text', '')[-2000:]}"


def programs(page, lessons):
    for lesson in lessons:
        number, name = lesson.split("_", 1)
        verdict = f"(?m)^lesson {number} {name}: "
        yield from complaint(page, lesson, "", 0, f"{verdict}PASS")
        yield from complaint(page, lesson, "--no-such-flag", 2, r"\Aerror: .*--no-such-flag.*\n\Z")
        usage = " ".join(page.run(f"{RUN}({json.dumps(lesson)}, '--help')")["text"].split())
        if found := re.search(r"--mutant WORD .*?One of none, ([a-z0-9-]+)", usage):
            yield from complaint(page, lesson, f"--mutant {found[1]}", 1, f"{verdict}FAIL")


def large_sends(page):
    """A message of at most 64 KiB leaves at once; a larger one waits for its receiver."""
    yield from complaint(page, "04_distributed_softmax", "", 0, r"64\.0 KiB +through\s+128\.0 KiB +NOT through")
    yield from complaint(page, "04_distributed_softmax", "--mutant small-messages", 1, "FAIL")


def addresses(page, url):
    page.open(f"{url}?1#lesson=05_blocking_ring&ranks=3&flags=--seq+50")
    if not page.until("page.last", 30) or "3 ranks, 50 tokens" not in page.run("by('output').textContent"):
        yield f"an address does not run its lesson: {page.run('document.body.innerText')}"
    if "a “ranks”" not in (said := page.run("page.choose('lesson=02_online_softmax&ranks=3')")):
        yield f"a lesson of one rank takes three: {said}"
    old = page.call("Page.addScriptToEvaluateOnNewDocument", source="delete WebAssembly.Suspending")
    page.open(f"{url}?2#lesson=05_blocking_ring")
    if "This browser cannot suspend WebAssembly" not in (said := page.run("by('verdict').textContent")):
        yield f"without JSPI the page says: {said}"
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=old["identifier"])


def failures_at(page, url, folder):
    page.look(800)
    page.open(url)
    lessons = page.run("[...page.field('lesson').options].map((one) => one.value)")
    found = [*programs(page, lessons if url.startswith("file:") else ["05_blocking_ring"]), *large_sends(page)]
    return found + [*addresses(page, url)]


if __name__ == "__main__":
    module = PAGE.parent / "module.js"
    sources = (file for folder in ("src", "lessons") for file in (ROOT / folder).rglob("*.?pp"))
    if not module.exists() or module.stat().st_mtime < max(file.stat().st_mtime for file in (PAGE, *sources)):
        print("skipped: the lessons' page has no module, or an old one. Remedy: make lessons-module")
        sys.exit(77)
    sys.exit(player_test.main(failures_at, PAGE))
