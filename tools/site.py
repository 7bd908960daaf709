"""``make site``: the pages as a site in build/site, by zensical; a dead link ends it.

The site is laid like the repository: what README.md leads to, page by page, lies where it lies
here, and with it each file that a page links to. So one link is right on every host of the
repository, on disk and on the site. The pages that came out are then looked through once more: what
a browser would ask for must be there. The search is docs/search.js, in place of zensical's own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.pages import ROOT

README, STYLE = ROOT / "README.md", ROOT / "docs" / "site.css"
SEARCH = ROOT / "docs" / "search.js"
NOTES = ROOT / "docs" / "design"
BUILD = ROOT / "build"
SOURCE, SITE = BUILD / "site-source", BUILD / "site"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def linked(first: Path) -> set[Path]:
    """Return the files that links lead to, from ``first`` on.

    Raises:
        ValueError: A link leads to nothing, or to a folder without a README.md.
    """
    reached, waiting = set[Path](), [first]
    while waiting:
        path = waiting.pop().resolve()
        if path.is_dir():
            path = path / "README.md"
        if path in reached:
            continue
        if not path.is_file():
            raise ValueError(f"a page links to {path.relative_to(ROOT)}, which is no file")
        reached.add(path)
        if path.suffix == ".md":
            text = CODE.sub("", path.read_text(encoding="utf-8"))
            named = (link.partition("#")[0] for link in LINK.findall(text) if "://" not in link)
            waiting += [path.parent / unquote(name) for name in named if name]
    return reached


def stage(files: set[Path]) -> None:
    """Lay the files as they lie here; nothing of an earlier site stays."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    for path in files:
        copy = SOURCE / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        if path.parent == NOTES:  # what was decided once is no answer to a question of today
            text = path.read_text(encoding="utf-8")
            copy.write_text(f"---\nsearch:\n  exclude: true\n---\n{text}", encoding="utf-8")


def navigation(readme: str) -> list[dict[str, object]]:
    """Return the README's table of pages as the site's navigation: its first words are sections."""
    sections: list[dict[str, object]] = [{"cachetier": "README.md"}]
    for title, links in re.findall(r"^\| (\w[\w ]*) \| (\[.+) \|$", readme, re.MULTILINE):
        pages = re.findall(r"\[([^\]]+)\]\(([^)#]+)[^)]*\)", links)
        sections.append({title.capitalize(): [{name: path} for name, path in pages]})
    return sections


class _Page(HTMLParser):
    """What a page of the site asks for, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value:
                self.asked.append(value)


def dead_links(site: Path) -> Iterator[str]:
    """Yield what a page of a site asks for in vain, and what it would ask other hosts for."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        name = path.relative_to(site)
        if name.name == "404.html":  # its links count from a root that only a host has
            continue
        for link in page.asked:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (
                path
                if not parts.path
                else Path(os.path.normpath(path.parent / unquote(parts.path)))
            )
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{name}: {link} leads to nothing"
            elif parts.fragment and target in pages and parts.fragment not in pages[target].anchors:
                yield f"{name}: {link} leads to no heading"


def main() -> int:
    """Build the site; return 1 with each link that is dead."""
    stage(linked(README) | {STYLE})
    nav = navigation(README.read_text(encoding="utf-8"))
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (BUILD / "mkdocs.yml").write_text(f"{settings}nav: {json.dumps(nav)}\n", encoding="utf-8")
    build = (Path(sys.argv[1]).absolute(), "build", "--strict", "--clean")
    done = subprocess.run(build, cwd=BUILD, check=False)
    (worker,) = SITE.glob("assets/javascripts/workers/search.*.js")
    shutil.copyfile(SEARCH, worker)
    dead = sorted(set(dead_links(SITE)))
    sys.stderr.write("".join(f"Error: {each}\n" for each in dead))
    return 1 if done.returncode or dead else 0


if __name__ == "__main__":
    sys.exit(main())
