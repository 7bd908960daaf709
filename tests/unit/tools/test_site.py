"""The site's own look at itself: what a browser would ask for in vain is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pages import ROOT
from tools.site import README, dead_links, linked, navigation


def test_what_a_page_asks_for_in_vain_is_named(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="page/">a</a><a href="page/#there">b</a><a href="#top">c</a>'
        '<a href="gone/">d</a><a href="page/#gone">e</a><img src="gone.svg"><a href="http://x/">f</a>'
    )
    (tmp_path / "page" / "index.html").write_text('<h2 id="there"></h2><a href="..">up</a>')
    (tmp_path / "404.html").write_text('<a href="/nowhere/">its links count from the host</a>')

    assert sorted(dead_links(tmp_path)) == [
        "index.html: gone.svg leads to nothing",
        "index.html: gone/ leads to nothing",
        "index.html: page/#gone leads to no heading",
    ]


def test_the_table_of_the_readme_is_the_navigation() -> None:
    text = "| | |\n|---|---|\n| start | [A](docs/a.md) · [B](docs/b.md#c), with D |\n| `x` | y |\n"

    assert navigation(text)[1:] == [{"Start": [{"A": "docs/a.md"}, {"B": "docs/b.md"}]}]
    assert len(navigation(README.read_text("utf-8"))) > 5


def test_the_site_is_made_of_what_the_readme_leads_to(tmp_path: Path) -> None:
    files = linked(README)
    assert ROOT / "docs" / "kubernetes.md" in files
    assert ROOT / "deploy" / "helm" / "cachetier" / "values.yaml" in files

    page = ROOT / "build" / "page.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("[a folder](../tests/acceptance)")
    with pytest.raises(ValueError, match=r"tests/acceptance/README\.md, which is no file"):
        linked(page)
