"""Builds the documentation site: `build.py BUILD_FOLDER DOXYGEN MATHJAX_FOLDER`.

Exit code 77 and a reason when Doxygen is missing; 1 when it has anything to warn about, or a page has a flaw.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import quoteattr

from markdown import ROOT, Document, page

# Formulas come in as TeX and go out as SVG; the rest of MathJax stays where it is.
MATHJAX_PARTS = ("MathJax.js extensions jax/element jax/input/TeX "
                 "jax/output/SVG/config.js jax/output/SVG/jax.js jax/output/SVG/autoload jax/output/SVG/fonts/TeX")


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


NAVIGATION = (("Ring Attention", "index.html"), ("The player", "player/index.html"), ("The lessons", "lessons.html"),
              ("Their programs", "lessons_page/index.html"), ("From C++", "cpp.html"),
              ("From Python", "python.html"), ("What is wrong with a ring", "diagnose.html"))


def copy_pages(html):
    """The player and the lessons' programs. They have the site's navigation there; in a clone, where the other pages are
    Markdown, they have none."""
    links = "\n".join(f'<a href="../{target}">{title}</a>' for title, target in NAVIGATION)
    for folder in ("player", "lessons_page"):
        shutil.copytree(ROOT / "docs" / folder, html / folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        index = html / folder / "index.html"
        page_there = index.read_text(encoding="utf-8").replace("<!-- the navigation, on the site -->",
                                                               f'<nav aria-label="Site">\n{links}\n</nav>')
        index.write_text(page_there, encoding="utf-8")


LESSONS = sorted(ROOT.glob("lessons/*/README.md"))
FIRST = [ROOT / "docs" / name for name in ("cpp.md", "python.md", "diagnose.md")]
MORE = [ROOT / "docs" / name for name in ("symptoms.md", "audit.md", "mistakes.md", "gpu.md", "clusters.md",
                                          "notation.md", "architecture.md", "parallelism.md", "practice.md",
                                          "sources.md", "results.md", "CHANGELOG.md")]
PAGES = [ROOT / "docs/mainpage.md", *LESSONS, *FIRST, *MORE]
PAGES += [*ROOT.glob("lessons/*.md"), *ROOT.glob("lessons/*/[A-Z]*.md"), *ROOT.glob("lessons/*/*/README.md"),
          *ROOT.glob("src/*/README.md")]


def tab(kind, title, url="", inside=""):
    return f'<tab type="{kind}" visible="yes" url="{url}" title={quoteattr(title)}>{inside}</tab>\n'


def page_tab(file):
    return tab("user", Document(file).title(), f"@ref {page(file)}")


def layout():
    """The side bar: the player, lessons in the order of the syllabus, then the pages, then the source."""
    lessons = "".join(page_tab(file) for file in LESSONS)
    source = "".join(tab(kind, title) for kind, title in (("filelist", "Files"), ("classlist", "Classes"),
                                                          ("namespacemembers", "Functions")))
    return f"""<doxygenlayout version="1.0">
<navindex>
{tab("mainpage", "Ring Attention")}
{tab("user", "The player", "player/index.html")}
{tab("usergroup", "Lessons", "@ref lessons", lessons)}
{tab("user", "The lessons' programs", "lessons_page/index.html")}
{"".join(map(page_tab, FIRST))}
{tab("usergroup", "More pages", "", "".join(map(page_tab, MORE)))}
{tab("usergroup", "Source", "", tab("user", "From C++: what you call", "@ref public_api") + source)}
</navindex>
</doxygenlayout>
"""


def flaws(html):
    """Formulas that stayed text, and links to pages, headings and pictures that the site does not have."""
    pages = [html / f"{page(file)}.html" for file in PAGES]
    texts = {file: file.read_text(encoding="utf-8") for file in pages if file.exists()}
    yield from (f"{file.name}: there is no such page" for file in pages if file not in texts)
    yield from (f"the navigation: there is no {target}" for _, target in NAVIGATION if not (html / target).exists())
    for file, text in texts.items():
        yield from (f"{file.name}: a formula is shown as text: {raw}" for raw in re.findall(r"\\f[$\[].{,40}", text))
        for link in re.findall(r'<(?:a href|img src)="([^":]+)"', text):
            target, _, heading = link.partition("#")
            other = html / target if target else file
            if not other.exists() or other in texts and heading and not re.search(f"id=.{heading}\\W", texts[other]):
                yield f"{file.name}: {link}: there is no such place on the site"


def redirect_file_references(html):
    """Doxygen makes an empty "File Reference" of each Markdown file, to which its search leads. They lead on to the page."""
    for file in PAGES:
        name = str(file.relative_to(ROOT)).replace("_", "__").replace("/", "_2").replace(".", "_8") + ".html"
        empty = max((other for other in html.glob("*_8md.html") if f"_2{name}".endswith(f"_2{other.name}")),
                    key=lambda other: len(other.name), default=None)
        if empty:
            empty.write_text(f'<meta http-equiv="refresh" content="0; url={page(file)}.html">\n', encoding="utf-8")


def main(build, doxygen, mathjax):
    if not shutil.which(doxygen):
        print("skipped: doxygen was not found. Remedy: sh setup.sh docs, then configure again.")
        return 77
    html = Path(build) / "html"
    shutil.rmtree(html, ignore_errors=True)
    (Path(build) / "layout.xml").write_text(layout(), encoding="utf-8")
    done = subprocess.run([doxygen, Path(build) / "Doxyfile"], stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode != 0 or done.stderr:
        return 1

    redirect_file_references(html)
    copy_pages(html)
    for pattern in ("docs/*.svg", "docs/*.png", "lessons/*/*.svg", "lessons/*/*.png"):
        for picture in ROOT.glob(pattern):
            copy(picture, html / picture.relative_to(ROOT))
    if Path(mathjax).is_dir():
        for part in MATHJAX_PARTS.split():
            copy(Path(mathjax) / part, html / "mathjax" / part)
    else:
        print("MathJax was not found: formulas will need a network. Remedy: sh setup.sh docs.")
    found = list(flaws(html))
    print("\n".join(found) or f"The site: {html / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
