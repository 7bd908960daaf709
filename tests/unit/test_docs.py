"""What the pages promise each other: links that lead somewhere, figures that were measured."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools import drawings
from tools.site import CODE, LINK, linked

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "benchmarks", "changes", "client", "deploy", "examples", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)

ASYNC_SAVE = "training blocked by dcp.async_save"
# Of each row of the README's table, the measures that its figures are rounded from, in their order.
FIGURES = {
    "`put_shard` of 1 GiB": (
        "put_shard 1 GiB, ack local / raw O_DIRECT write",
        "put_shard 1 GiB",
        "raw O_DIRECT write of 1 GiB",
        "put_shard 1 GiB, ack local / one write + fsync",
    ),
    "training blocked by a save in the demo": (
        "training blocked per checkpoint in the demo / direct boto3 PUT at 35 ms",
    ),
    "training blocked by `dcp.async_save`": (
        f"{ASYNC_SAVE}: CachetierWriter / FileSystemWriter, default",
        f"{ASYNC_SAVE}: CachetierWriter, LazyStager / FileSystemWriter, default",
    ),
    "64 ranks on a throttled bucket": (
        "drain under a bucket of 25 parts/s: shards failed",
        "64 direct boto3 writers under a bucket of 25 parts/s: shards failed",
    ),
    "errors that ranks saw": ("an outage of 30 s: errors that a saving rank saw",),
}


def anchors(page: Path) -> set[str]:
    """Return the names under which the headings of a page can be linked to."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return {anchor_of(each) for each in re.findall(r"^#+ .+$", text, re.MULTILINE)}


def anchor_of(heading: str) -> str:
    """Return the name under which a heading can be linked to."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lstrip("#").strip()).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_of_the_docs_can_be_reached_from_the_readme() -> None:
    reached = linked(ROOT / "README.md")

    assert {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - reached == set()


@pytest.mark.parametrize(
    ("tree", "header"),
    [
        ("cachetier", "package or module"),
        ("client/cachetier_client", "module of `cachetier_client`"),
    ],
)
def test_the_map_of_the_modules_names_each_once(tree: str, header: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page.partition(f"\n| {header} |")[2].partition("\n\n")[0]
    named = [
        name.rstrip("/")
        for cell in re.findall(r"^\| (`.+?`) \|", rows, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", cell)
    ]
    there = {
        path.stem
        for path in (ROOT / tree).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    modules = {name for name in there if not name.startswith("__")}

    for module in modules:
        rows_of_it = [name for name in named if fnmatch(module, name)]
        assert len(rows_of_it) == 1, f"{module}: {rows_of_it}"
    assert [name for name in named if not any(fnmatch(each, name) for each in modules)] == []


def test_every_module_that_a_page_names_is_there() -> None:
    """Design notes may keep old names: they are history."""
    cited = re.compile(r"(?<![\w/*.:-])(?:\.\./)*((?:[\w-]+/)*[\w-]+\.py)\b")
    modules = {
        f"/{path.relative_to(ROOT)}"
        for folder in ("cachetier", "client", "tests", "benchmarks", "examples", "tools", "deploy")
        for path in (ROOT / folder).rglob("*.py")
    }
    pages = [page for page in PAGES if page.parent.name != "design"]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in cited.findall(page.read_text(encoding="utf-8"))
        if not any(module.endswith(f"/{name}") for module in modules)
    ]
    assert missing == []


def test_every_step_of_the_path_of_a_byte_is_a_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    path = page.partition("## The path of a byte")[2].partition("\n## ")[0]
    trees = (ROOT / "cachetier", ROOT / "client" / "cachetier_client")
    steps = re.findall(r"(?<![\w/.])[a-z]\w+(?:/[a-z]\w+)+", path)
    missing = [
        step
        for step in steps
        if not any((tree / f"{step}.py").exists() or (tree / step).is_dir() for tree in trees)
    ]
    assert len(steps) > 20
    assert missing == []


# Each is answered below a heading of a page that the README's table names: two clicks.
QUESTIONS = {
    "where do I cap the bandwidth by time of day?": ("drain.md#pace", "max_rate"),
    "a node died, what did I lose?": ("guarantees.md#what-fails-on-the-node", "the node is lost"),
    "how do I replace a lost node?": ("operations.md#replace-a-lost-node", "cachetier restore"),
    "how do I move to another bucket?": (
        "operations.md#move-to-another-bucket-change-credentials",
        "new bucket",
    ),
    "how do I restore a step without a browser?": (
        "operations.md#restore-a-step",
        "cachetier restore RUN",
    ),
    "what happens when the cache is full?": ("configuration.md#when-the-cache-is-full", "wait"),
    "how often should I save?": ("planning.md#how-often-to-save", "plan interval"),
    "how do I drain a Kubernetes node?": (
        "kubernetes.md#when-a-pod-ends-and-when-a-node-goes",
        "leave",
    ),
    "two jobs saved one step, who wins?": (
        "guarantees.md#what-happens-to-a-checkpoint",
        "two jobs save the same step",
    ),
    "how do I keep a step on the node?": ("operations.md#keep-a-step-pin-it", "cachetier pin"),
    "how do I get a step as plain files?": ("frameworks.md#export-and-import", "cachetier get"),
    "my trainer only writes files, what now?": ("frameworks.md#watch-a-folder", "cachetier adopt"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_two_clicks_from_the_readme(question: str) -> None:
    address, answer = QUESTIONS[question]
    name, _, anchor = address.partition("#")
    page = ROOT / "docs" / name
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert f"](docs/{name})" in readme.partition("## Which page for which job")[2]
    sections = re.split(r"^(?=#+ )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (found,) = [each for each in sections if anchor_of(each.partition("\n")[0]) == anchor]
    assert answer in found


# A sentence that begins so has no subject until its end: name the shard, the caller, the service.
OPENING = re.compile(
    r"(?:(?<=[.;:] )|(?<=^)|(?<=\n\n)|(?<=\| )|(?<=- ))"
    r"(?:What|Who|Whoever|Whose|Those who|As what)\b[^.?|\n]*(?!\?)[.|\n:,]"
)
MADE = re.compile(r"<!-- begin:.*?<!-- end:[^>]*-->", re.DOTALL)


def test_no_sentence_of_a_page_begins_without_its_subject() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "design"]
    found = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages):
        text = MADE.sub("", CODE.sub("", page.read_text(encoding="utf-8")))
        text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
        found += [f"{page.relative_to(ROOT)}: {each}" for each in OPENING.findall(text)]
    assert found == []


def test_every_page_and_section_that_the_code_names_is_there() -> None:
    kinds = ("*.py", "*.toml", "*.yml", "*.yaml", "*.tpl", "*.sh", "*.service")
    folders = ("cachetier", "client", "tests", "tools", "benchmarks", "examples", "deploy")
    named = re.compile(r"(?<![\w/.])(docs/[a-z0-9/-]+\.md)(?:,\s+(?:# )?\"([^\"]+)\")?")
    own = {Path(__file__), ROOT / "tests" / "unit" / "tools" / "test_site.py"}
    missing = [
        f"{file.relative_to(ROOT)}: {name} {section}"
        for folder in folders
        for kind in kinds
        for file in (ROOT / folder).rglob(kind)
        if file not in own
        for name, section in named.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
        or (section and anchor_of(section) not in anchors(ROOT / name))
    ]
    assert missing == []


def pages_of_users() -> set[Path]:
    """Return the pages that the README's table names, but for the reference."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:start|concepts|train|run|tune) \| (.+) \|$", text, re.MULTILINE)
    return {ROOT / path for row in rows for path in re.findall(r"\((docs/[a-z0-9]+\.md)", row)}


def test_the_readme_is_read_in_three_minutes_and_users_have_few_pages() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    written = (MADE.sub("", page.read_text(encoding="utf-8")) for page in pages_of_users())

    assert len(text.split()) <= 700
    assert len(pages_of_users()) <= 18
    assert sum(len(page.split()) for page in written) <= 40_000


@pytest.mark.parametrize("page", sorted(pages_of_users()), ids=lambda page: page.stem)
def test_a_page_begins_with_its_purpose_and_an_example(page: Path) -> None:
    _title, purpose, rest = page.read_text(encoding="utf-8").split("\n\n", 2)
    first_section = re.split(r"^## ", rest, flags=re.MULTILINE)[:2]

    assert re.match(r"[A-Z].*[.:]$", purpose, re.DOTALL)
    assert any("```" in part or "](images/" in part for part in first_section)


def test_each_drawing_stands_on_a_page_with_words_for_it() -> None:
    pages = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    described = set(re.findall(r"!\[[^\]]+ [^\]]+\]\((?:docs/)?images/([\w-]+)\.svg\)", text))

    assert described == {path.stem for path in drawings.documents()}


def test_the_figures_of_the_readme_are_the_measured_ones() -> None:
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    measured = {each["measure"]: float(each["value"]) for each in results}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## In figures")[2].partition("\n\n##")[0]
    rows = re.findall(r"^\| (?!\||---)(.+?) \| (.+?) \|$", table, re.MULTILINE)

    assert [what for what, _ in rows if not what.startswith(tuple(FIGURES))] == []
    for begins, measures in FIGURES.items():
        (shown,) = [text for what, text in rows if what.startswith(begins)]
        numbers = re.findall(r"\d+(?:\.\d+)?", re.sub(r"of \d+", "", shown))
        for number, measure in zip(numbers, measures, strict=True):
            digits = len(number.partition(".")[2])
            assert float(number) == pytest.approx(measured[measure], abs=0.51 * 10**-digits)

    first_screen = re.findall(r"\*\*([\d.]+)\*\*", readme.partition("\n## ")[0])
    heads = ("`put_shard` of", "training blocked by a save in the demo", "errors that ranks saw")
    shown = [text for head in heads for what, text in rows if what.startswith(head)]
    assert first_screen == [re.findall(r"[\d.]+", text)[0] for text in shown]
