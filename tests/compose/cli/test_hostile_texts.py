"""Ids, reasons and names are untrusted: no page or command sends them to a terminal unescaped."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import rollcall.compose
from rollcall.compose.cli.app import _guarded
from rollcall.compose.console import PlainConsole
from rollcall.compose.terminal import say
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.schemas.errors import BadBytes
from rollcall.schemas.messages import Control, Limits, Quota, RolloutRequest, Task
from rollcall.schemas.untrusted_text import printable, printable_json
from tests.support.command_line import call
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster

EVIL = "evil\x1b]0;owned\x07\x9b31m\u202egood\u2066[red]x[/none]\x7f\x00\r:bomb:"
COMMANDS = [
    ("waiting",), ("waiting", "--json"), ("trajectory", EVIL), ("trajectory", EVIL, "--tokens"),
    ("trajectory", EVIL, "--json"), ("trajectory", "--diff", EVIL, "plain"), ("balance",),
    ("dlq", "list"), ("dlq", "list", "--all"), ("dlq", "show", "0@0"), ("dlq", "show", EVIL),
    ("dlq", "drop", "--all"), ("dlq", "replay", "--all"), ("dlq", "list", "--source", EVIL),
    ("tail", "rollout.requests"), ("tail", "dead.letters", "--raw"), ("tail", "rollout.events"),
    ("tail", "control"), ("tail", EVIL), ("topics", "stats"), ("verify",), ("verify", "--json"),
    ("quota", "list"), ("quota", "set", EVIL, "--running", "2"), ("scorings", "list"),
    ("scorings", "retire", EVIL), ("runs",), ("eval", "--run", EVIL), ("replay", EVIL),
    ("cancel", EVIL), ("fork", EVIL, "--at", "0"), ("curve", EVIL), ("drain", EVIL),
    ("rescore", "--scoring", EVIL), ("export", "--policy", EVIL), ("boxes",),
    ("pause", "--run", EVIL),
    ("query", "select rollout_id, reason from trajectories"), ("query", f"select '{EVIL}'"),
    ("dlq", "skip", "agents", "rollout.requests", "0@0-0", "--reason", EVIL, "--by", EVIL),
]  # fmt: skip


def harmless(text: str) -> bool:
    """Whether a terminal shows the text without executing any control sequence in it."""
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.fixture
def cluster() -> MemoryCluster:
    """A cluster in which every text is hostile."""
    made = MemoryCluster()
    task = Task(CORRIDOR, seed=7, prompt=EVIL, task_id=EVIL)
    one = RolloutRequest(
        EVIL, task, policy_id=POLICY, group_id=EVIL, run_id=EVIL, user=EVIL, limits=Limits(1)
    )
    made.hire(lambda call: EVIL)
    for asked in (one, replace(one, rollout_id="plain"), replace(one, agent=EVIL, rollout_id="x")):
        value = made.codec.encode(made.topics.requests, asked)
        made.log.append(made.topics.requests, asked.rollout_id.encode(), value, 0)
    made.finish()
    raw = Record(made.topics.requests, 0, 99, EVIL.encode(), EVIL.encode(), 5, [(EVIL, b"\x1b")])
    letters = DeadLetters(made.log.publisher(), made.topics, EVIL, lambda: 0.0, made.log)
    letters.bury(raw, BadBytes(EVIL))
    word = Control("cancel", rollout_id=EVIL, reason=EVIL)
    made.log.append(made.topics.control, b"c", made.codec.encode(made.topics.control, word))
    quota = made.codec.encode(made.topics.quotas, Quota(EVIL, 1, 1.0))
    made.log.append(made.topics.quotas, EVIL.encode(), quota)
    open_ = replace(one, rollout_id=f"{EVIL}-open")
    value = made.codec.encode(made.topics.requests, open_)
    made.log.append(made.topics.requests, open_.rollout_id.encode(), value, 0)
    return made


@pytest.mark.parametrize("words", COMMANDS, ids=[printable(" ".join(w))[:40] for w in COMMANDS])
def test_no_command_passes_control_characters_to_the_terminal(
    words: tuple[str, ...], cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()

    status = _guarded(lambda: call(cluster, *words))

    told = capsys.readouterr()
    assert status in (0, 1, 2)
    assert told.out + told.err
    logged = [line for line in told.out.splitlines() if not line.startswith("2026-")]
    assert harmless("\n".join(logged)), repr(told.out)
    assert harmless(told.err), repr(told.err)


SHOWN: list[Callable[[str], object]] = [
    lambda text: PlainConsole(width=500).print(text),
    lambda text: PlainConsole(width=500, force_terminal=True).print(text, style=None),
    say,
    lambda text: say(text, err=True),
]


@pytest.mark.parametrize("show", SHOWN)
def test_every_shown_character_is_printable(
    show: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    everything = "".join(map(chr, [*range(0x300), *range(0x2000, 0x2100), 0xFEFF, 0xE0001, 0xD800]))

    show(everything)
    show("[bold]not markup[/nonsense] :smile:")

    told = "".join(capsys.readouterr())
    assert harmless(told.replace("\t", ""))
    assert "[bold]not markup[/nonsense] :smile:" in told


def test_no_source_text_uses_console_markup() -> None:
    marked = re.compile(r"\[/\]|\[/?(bold|dim|italic|red|green|yellow|blue|cyan|magenta)\b[^\]]*\]")
    sources = (Path(rollcall.compose.__file__).parent).rglob("*.py")

    assert [str(path) for path in sources if marked.search(path.read_text())] == []


def test_json_output_keeps_the_value_in_printable_characters() -> None:
    value = {EVIL: [EVIL, "é", "\U0001f600", "\U000e0001", "\ufeff"]}

    text = printable_json(json.dumps(value, ensure_ascii=False))

    assert harmless(text)
    assert json.loads(text) == value
    assert "é" in text
