"""Markdown as code hosts read it, turned into Markdown as Doxygen reads it.

Doxygen calls this as a filter, `markdown.py FILE`: formulas get Doxygen's marks, headings get names that
links can aim at, links follow the pages to the site, and a lesson's page ends in the lesson's program.
links_test.py uses the same functions, so that test and site agree on what a formula and a link are.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Taken out before anything else is looked for. Code comes first: a dollar in it is no formula.
# $`...`$ is the other way in which code hosts write $...$.
PROTECTED = re.compile(
    r"""
    (?P<code> ^[ ]*(?P<fence>```+|~~~+)[^\n]*\n .*? ^[ ]*(?P=fence)[ ]*$
            | <!-- .*? -->
            | (?<![`$])(?P<ticks>`+)(?!`) (?:(?!\n\n).)+? (?<!`)(?P=ticks)(?!`)
            | \\[$\\] )
  | \$\$ (?P<display> (?:(?!\n\n)[^$])+ ) \$\$
  | \$` (?P<quoted> (?:(?!\n\n)[^`])+ ) `\$
  | (?<![\w$])\$ (?P<inline> (?![\s$]) (?:(?!\n\n)[^$\\]|\\.)+ (?<!\s) ) \$ (?![\w$])
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
HEADING = re.compile(r"^(#{1,6}) +(.+?)[ #]*$", re.MULTILINE)
LINK = re.compile(r'(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)(?:\s+"[^"]*")?\)')
IMAGE_TAG = re.compile(r'(?P<before><img\b[^>]*?\bsrc=")(?P<target>[^"]+)(?P<after>"[^>]*>)')
QUOTED = re.compile(r'"(?:(?!\n\n)[^"])*"')
IN_HEADINGS = {r"\infty": "∞", r"\times": "×", r"\cdot": "·", r"\delta": "δ", r"\beta": "β"}  # where formulas are text
FOLDING = re.compile(r"<summary>.*?</summary>|</?details>")  # tags that Doxygen knows only from 1.9.8 on


class Document:
    """One file. In `text`, code and formulas are replaced by marks, so that the rest can be searched."""

    def __init__(self, path):
        self.path = Path(path).resolve()
        self.kept = []  # (as written, for Doxygen)
        self.text = PROTECTED.sub(self._take_out, self.path.read_text(encoding="utf-8"))

    def _take_out(self, match):
        formula = match["inline"] or match["quoted"]
        if match["display"]:
            kept = r"\f[" + match["display"].strip() + r"\f]"
        elif formula:
            kept = r"\f$" + formula + r"\f$"
        else:
            kept = match[0]
        self.kept.append((match[0], kept))
        newlines = "\n" * match[0].count("\n")  # so that lines keep their numbers
        return f"\0{len(self.kept) - 1}{newlines}\0"

    def restore(self, text, for_doxygen=False):
        """Puts code and formulas back."""
        return re.sub("\0(\\d+)\n*\0", lambda mark: self.kept[int(mark[1])][for_doxygen], text)

    def line(self, position):
        return self.text.count("\n", 0, position) + 1

    def links(self):
        """(line, target) of every link and picture."""
        for pattern in (LINK, IMAGE_TAG):
            for match in pattern.finditer(self.text):
                yield self.line(match.start()), match["target"]

    def target(self, link):
        """The path and the heading that a relative link aims at; None for an address on the web."""
        if re.match(r"[a-z]+:", link):
            return None
        path, _, heading = link.partition("#")
        return Path(os.path.normpath(self.path.parent / path)) if path else self.path, heading

    def title(self):
        first = HEADING.search(self.text)
        return self.restore(first[2]).replace("`", "") if first else self.path.stem

    def slugs(self):
        """The names by which code hosts link to the headings, in order."""
        seen = {}
        for match in HEADING.finditer(self.text):
            slug = re.sub(r"[^\w\- ]", "", self.restore(match[2]).lower()).replace(" ", "-")
            seen[slug] = seen.get(slug, -1) + 1
            yield f"{slug}-{seen[slug]}" if seen[slug] else slug


def has_page(header):
    """Whether the site has a page of this header: the library's, and those above it but for the commands."""
    folders = ("ring_attention", "io", "model", "plan")
    return any(header.is_relative_to(ROOT / "src" / folder) for folder in folders) and header.parent.name != "train"


def page(path):
    """The name of a file's page on the site, or None."""
    relative = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if relative in ("README.md", "docs/mainpage.md"):
        return "index"
    if match := re.fullmatch(r"src/(\w+)/README\.md", relative):
        return f"source_{match[1]}"
    match = re.fullmatch(r"docs/(\w+)\.md|(lessons)(?:/(\w+))?(?:/(gpu|nccl))?(?:/(?:README|(\w+))\.md)?", relative)
    return match and (match[1] or "_".join(filter(None, ("lesson" if match[3] else "lessons", *match.groups()[2:]))))


class Filter(Document):
    """The same file, for Doxygen."""

    def name_headings(self):
        slugs = self.slugs()
        own = page(self.path)

        def name(match):
            slug = next(slugs)
            title = re.sub(r"[$`{}]", "", self.restore(match[2])).replace("--", r"\--")
            for command, letter in IN_HEADINGS.items():
                title = title.replace(command, letter)
            if own == "index":  # its headings would be in the side bar
                return f"{match[1]} {title}"
            return f"{match[1]} {title} {{#{own}}}" if match.start() == 0 else f"{match[1]} {title} {{#{own}-{slug}}}"

        self.text = HEADING.sub(name, self.text)

    def unquote(self, match):
        """Doxygen looks for no formula between quotation marks."""
        marks = re.findall("\0(\\d+)", match[0])
        has_formula = any(self.kept[int(mark)][True].startswith("\\f") for mark in marks)
        return match[0].replace('"', "&quot;") if has_formula else match[0]

    def follow(self, match):
        """A link or a picture, as the site has it."""
        target = self.target(match["target"])
        if target is None:
            return match[0]
        path, heading = target
        relative = path.relative_to(ROOT).as_posix()
        if relative == "docs/player.md":
            return f'<a href="player/index.html{f"#{heading}" if heading else ""}">{match["text"]}</a>'
        if match["image"]:
            return f'<img src="{relative}" alt="{match["text"]}">'
        name = page(path)
        if name:
            fragment = f"#{name}-{heading}" if heading and name != "index" else ""
            return f'<a href="{name}.html{fragment}">{match["text"]}</a>'
        if path.suffix == ".hpp" and has_page(path):
            plain = " ".join(self.restore(match["text"]).replace("`", "").replace('"', "").split())  # of one line
            return f'@ref {path.relative_to(ROOT / "src").as_posix()} "{plain}"'
        if path in self.programs():
            return f'<a href="#{page(self.path)}-program">{match["text"]}</a>'
        return match["text"]  # a file that the site does not have

    def follow_tag(self, match):
        target = self.target(match["target"])
        url = target[0].relative_to(ROOT).as_posix() if target else match["target"]
        return match["before"] + url + match["after"]

    def programs(self):
        """The sources in a lesson's folder, headers first: the idea, where it has one of its own."""
        if self.path.name != "README.md":
            return []
        return [file for kind in ("*.hpp", "*.cu", "*.cpp") for file in sorted(self.path.parent.glob(kind))]

    def listing(self):
        """The end of a lesson's page."""
        if not self.programs() or not page(self.path).startswith("lesson_"):
            return ""
        files = [file.relative_to(ROOT / "lessons").as_posix() for file in self.programs()]
        lesson = self.path.parent.name
        in_page = f">{lesson}</option>" in (ROOT / "docs/lessons_page/index.html").read_text(encoding="utf-8")
        runs = f'\n<a href="lessons_page/index.html#lesson={lesson}">It runs in a browser page.</a>\n' if in_page else ""
        return f"\n\n## The program {{#{page(self.path)}-program}}\n{runs}" + "".join(
            f"\n`{os.path.basename(file)}`\n\n@includelineno {file}\n" for file in files
        )

    def output(self):
        self.name_headings()
        self.text = QUOTED.sub(self.unquote, self.text)
        self.text = IMAGE_TAG.sub(self.follow_tag, self.text)
        self.text = LINK.sub(self.follow, self.text)
        self.text = FOLDING.sub(lambda tag: f"@htmlonly[block]{tag[0]}@endhtmlonly", self.text)
        return self.restore(self.text, for_doxygen=True) + self.listing()


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(Filter(sys.argv[1]).output())
