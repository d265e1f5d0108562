"""Files, modules, commands, topics and invariants on the documentation pages exist."""

import re
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import Any

import pytest
import typer

from rollcall.compose.benchmarks.suite import BENCHMARKS
from rollcall.compose.cli.app import PANELS, app
from rollcall.consumers.audit.report import INVARIANTS
from rollcall.schemas.topics import manifest
from tests.support.command_line import ROOT
from tests.support.pages import PAGES, blocks, commands, quoted
from tests.support.rooms import ROOMS

README = PAGES["README.md"]
TOPS = {path.name for path in ROOT.iterdir()} - {".rollcall"}  # where runs go, if there are any
OURS = re.compile(r"rollcall(\.\w+)+(?<!\.toml)(?<!\.yaml)(?<!\.json)")
LINES = [
    (page, words) for page in PAGES for block in blocks("sh", page) for words in commands(block)
]
EVERYWHERE = sorted({(page, text) for page in PAGES for text in quoted(page)})


def is_path(text: str) -> bool:
    return re.fullmatch(r"[\w.*/-]+", text) is not None and text.split("/")[0] in TOPS


def missing(texts: Iterable[str]) -> list[str]:
    """The names of ours among them behind which there is nothing."""
    names = sorted(filter(OURS.fullmatch, set(texts)))
    return [name for name in names if not is_there(name)]


def is_there(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_every_path_named_on_a_page_exists(page: str) -> None:
    paths = {text for text in quoted(page) if is_path(text)}

    assert [path for path in paths if not any(ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGES[page])

    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_module_name_on_a_page_can_be_imported(page: str) -> None:
    assert missing(quoted(page)) == []


def test_every_module_name_in_docstrings_and_comments_can_be_imported() -> None:
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    texts = [path.read_text() for path in sources]
    names = {text for source in texts for text in re.findall(r"`([\w.]+)`", source)}

    assert missing(names) == []


def test_readme_walk_names_a_place_for_every_step() -> None:
    walk = README.partition("## How one rollout travels")[2].partition("\n## ")[0]
    rows = [row for row in walk.splitlines() if row.startswith("|")][2:]

    assert [row for row in rows if "`" not in row.split("|")[2] and "---" not in row][1:] == []


def test_tree_of_folders_is_complete() -> None:
    (tree,) = blocks("text", "CONTRIBUTING.md")
    named, parents = set[str](), dict[int, str]()
    for line in tree.splitlines():
        depth = len(line) - len(line.lstrip())
        name = line.split()[0]
        parents[depth] = parents.get(depth - 2, "") + name
        named.add(parents[depth])

    folders = {
        f"{path.parent.relative_to(ROOT).as_posix()}/"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", "")
    }
    folders = {path for path in folders if not path.startswith("compose/recipes/repairs/")}  # tasks
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert folders - named == {
        "sandbox/environments/",
        "sandbox/agents/adapters/",
        "schemas/avro/",
        "compose/services/locks/",
        "compose/runs/locks/",
    }


@pytest.mark.parametrize(("page", "words"), LINES, ids=lambda value: " ".join(value[:3]))
def test_every_command_line_on_a_page_is_valid(page: str, words: list[str]) -> None:
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    assert words[0] == "rollcall"
    command: Any = typer.main.get_command(app)
    for name in words[1:]:
        if not hasattr(command, "commands") or name not in command.commands:
            break
        words = words[1:]
        command = command.commands[name]
    command.make_context(" ".join(words), words[1:])


def test_every_command_in_running_text_exists() -> None:
    command: Any = typer.main.get_command(app)
    called = {(page, text.split()[1]) for page, text in EVERYWHERE if text.startswith("rollcall ")}

    first = {(page, name.partition("|")[0]) for page, name in called if name.islower()}
    assert {(page, name) for page, name in first if name not in command.commands} == set()


def test_table_of_commands_matches_the_help() -> None:
    table = PAGES["compose/README.md"].partition("## Commands")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*`) \|$", table, re.MULTILINE)

    assert {when.capitalize(): re.findall(r"`(\S+)`", names) for when, names in rows} == {
        panel: list(commands_) for panel, commands_ in PANELS.items()
    }


def test_table_of_topics_matches_the_manifest() -> None:
    page = PAGES["schemas/README.md"]
    rows = re.findall(r"^\| `([a-z.]+)[<>.a-z]*` \|.*\| ([a-z_ ]+) \|$", page, flags=re.M)

    keys = {name.rstrip("."): key for name, key in rows}
    assert keys == {spec.name: spec.key for spec in manifest()}


def test_table_of_invariants_matches_verify() -> None:
    page = PAGES["consumers/README.md"]

    assert dict(re.findall(r"^\| (I\d) \| (.*) \|$", page, re.MULTILINE)) == INVARIANTS


def test_every_benchmark_is_in_the_table_of_measurement_methods() -> None:
    table = PAGES["compose/benchmarks/README.md"].partition("How each figure is measured")[2]
    names = re.findall(r"`([\w.]+)`(?= [`|])", table)

    assert sorted(names) == sorted(BENCHMARKS)


def test_every_row_of_figures_is_dated() -> None:
    page = PAGES["compose/benchmarks/README.md"]
    date, undated = re.compile(r"20\d\d-\d\d-\d\d"), []
    blocks_of_text = page.split("\n\n")
    for number, block in enumerate(blocks_of_text):
        if block.startswith("|") and not block.startswith("| names"):
            above = next(b for b in reversed(blocks_of_text[:number]) if b[0] not in "|!")
            rows = block.splitlines()[2:]
            undated += [] if date.search(above) else [r for r in rows if not date.search(r)]

    assert undated == []


def test_figures_on_the_first_page_are_in_a_benchmark_table() -> None:
    (said,) = re.findall(r"\[benchmarks\]\(\S+\) \((.+?)\)", README)
    tables = "\n".join(re.findall(r"^\|.*$", PAGES["compose/benchmarks/README.md"], flags=re.M))

    figures = re.findall(r"\d+,\d{3}", said)
    assert figures
    assert [each for each in figures if each not in tables] == []


def test_readme_is_short_enough_to_be_read() -> None:
    """Rows of tables are looked up and not read."""
    read = {
        page: [line for line in text.splitlines() if not line.startswith("| ")]
        for page, text in PAGES.items()
    }

    assert {page for page, lines in read.items() if len(lines) > 200} == set()
    assert len(README.splitlines()) <= 180


def test_no_long_line_appears_twice() -> None:
    lines = [line for text in PAGES.values() for line in text.splitlines() if len(line) > 60]

    assert {line for line in lines if lines.count(line) > 1} == set()
