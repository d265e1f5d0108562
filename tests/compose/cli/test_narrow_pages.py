"""Every listing command, on a recorded run with long and hostile ids, at any width.

An id is whole on one line, since one copies it; nothing is cut without a word; a terminal obeys
nothing that stands in it.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.compose import terminal
from rollcall.compose.cli.app import _guarded
from rollcall.compose.settings import Settings
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.schemas.errors import BadBytes
from rollcall.schemas.messages import Limits, Quota, RolloutRequest, Task, TrainStep
from rollcall.schemas.untrusted_text import printable
from tests.support.command_line import call
from tests.support.memory_cluster import CORRIDOR, POLICY, MemoryCluster
from tests.support.tiers import cases

LONG = "long/" + "0123456789abcdef" * 5
EVIL = "evil\x1b]0;owned\x07\x9b31m\u202egood[red]x[/none]\x7f\x00\r:bomb:" + "-" * 40
IDS = {LONG, EVIL}
ROLLOUTS = {f"{each}-{number}" for each in IDS for number in range(2)}
OPEN = {f"{each}-open" for each in IDS}
METRICS = {"loss": 0.5, "reward_mean": 0.25, "entropy": 1.0, "tokens": 10.0}

PAGES: list[tuple[tuple[str, ...], set[str]]] = [
    (("runs",), IDS),
    (("topics", "stats"), {"t.trajectories.scored", "t.model.calls.p", "t.rollout.requests"}),
    (("quota", "list"), IDS),
    (("scorings", "list"), {"default"}),
    (("waiting",), OPEN),
    (("dlq", "list"), set()),
    (("dlq", "list", "--all"), set()),
    (("verify",), set()),
    (("curve", LONG), {LONG}),
    (("curve", EVIL), {EVIL}),
    (("eval", "--run", LONG), {CORRIDOR}),
    (("trajectory", f"{LONG}-0"), {f"{LONG}-0"}),
    (("trajectory", f"{EVIL}-0", "--tokens"), {f"{EVIL}-0"}),
    (("trajectory", "--diff", f"{LONG}-0", f"{LONG}-1"), {LONG}),
    (("query", "select rollout_id, group_id, run_id, status from trajectories"), ROLLOUTS | IDS),
    (("query", "select * from trajectories"), ROLLOUTS | IDS),
    (("algorithms",), {"clip_higher", "success_weighted", "adaptive_rollouts"}),
    (("boxes",), set()),
    (("agents", "list"), {"mini-swe-agent", "openai-agents"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryCluster, Path]:
    """Rollouts that ended, two that wait, dead letters, quotas, and steps of two runs."""
    state, tables = (tmp_path_factory.mktemp(name) for name in ("state", "tables"))
    made = MemoryCluster(settings=Settings(state_dir=state, prefix="t."))
    made.hire(lambda call: f"{EVIL} {LONG}")
    for each in sorted(IDS):
        task = Task(CORRIDOR, seed=7, prompt=f"{EVIL} {LONG}", task_id=each)
        for number in range(2):
            made.ask(
                RolloutRequest(
                    f"{each}-{number}", task, policy_id=POLICY, group_id=each, group_size=2,
                    run_id=each, user=each, purpose="evaluate", limits=Limits(4),
                )
            )  # fmt: skip
    made.finish()
    one = RolloutRequest("", Task(CORRIDOR, seed=7), policy_id=POLICY, run_id=LONG, user=LONG)
    for each in sorted(OPEN):
        value = made.codec.encode(made.topics.requests, replace(one, rollout_id=each))
        made.log.append(made.topics.requests, each.encode(), value, 0)
    for each in sorted(IDS):
        raw = Record(made.topics.requests, 0, 99, each.encode(), each.encode(), 5, [])
        letters = DeadLetters(made.log.publisher(), made.topics, each, lambda: 0.0, made.log)
        letters.bury(raw, BadBytes(each))
        quota = made.codec.encode(made.topics.quotas, Quota(each, 1, 1.0))
        made.log.append(made.topics.quotas, each.encode(), quota)
        for number in (1, 2):
            step = TrainStep(each, each, number, number, number - 1, (), METRICS)
            value = made.codec.encode(made.topics.train_steps, step)
            made.log.append(made.topics.train_steps, each.encode(), value)
    assert _guarded(lambda: call(made, "export", "--parquet", str(tables))) == 0
    made.log.crew = ()  # Workers that went on would answer what these pages show as waiting.
    return made, tables


@pytest.mark.parametrize("width", cases([40, 60, 80, 120]))
@pytest.mark.parametrize(("words", "ids"), PAGES, ids=[" ".join(p[0])[:30] for p in PAGES])
def test_page_shows_every_id_whole_and_only_printable_characters(
    cluster: tuple[MemoryCluster, Path],
    words: tuple[str, ...],
    ids: set[str],
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "WIDE", width)
    monkeypatch.setenv("COLUMNS", str(width))
    capsys.readouterr()

    made, tables = cluster
    where = ("--dir", str(tables)) if words[0] == "query" else ()

    status = _guarded(lambda: call(made, *words, *where))

    told = capsys.readouterr()
    assert status in (0, 1), told.err
    lines = told.out.splitlines()
    assert lines, told.err
    assert all(c.isprintable() for line in lines for c in line), repr(told.out)
    missing = {each for each in ids if not any(printable(each) in line for line in lines)}
    assert missing == set(), told.out
    assert all(" characters" in line for line in lines if "…" in line)
