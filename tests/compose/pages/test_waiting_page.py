"""The page of waits, for people and for programs."""

import pytest
import typer

from rollcall.compose.cli.app import app
from rollcall.compose.cli.waiting import print_waiting
from rollcall.compose.terminal import page
from rollcall.consumers.agents.control_state import ControlState
from rollcall.consumers.history.waiting.open_work import PartitionOwner
from rollcall.consumers.history.waiting.waiting import OpenWaits
from rollcall.consumers.history.waiting.waits import Wait
from rollcall.schemas.messages import Control

NOW_MS = 1_700_000_000_000
STEPS = PartitionOwner("t.environments", "t.env.steps", 2)
JOURNAL = PartitionOwner("t.agents", "t.rollout.events", 1)
CALL = Wait("r1", "g", "step", "lake 1/0/0", NOW_MS - 90_000, NOW_MS - 30_000, STEPS)
END = Wait("r2", "g", "decision", "its end", NOW_MS - 3_000, NOW_MS + 4_000, JOURNAL)
WHOLE = Wait("r3", "g", "group", "1 of 3", NOW_MS - 1_000, None, None)


def waiting(*waits: Wait, words: ControlState | None = None, **given: object) -> OpenWaits:
    told = {"owners": {STEPS: "environments-2"}, "writers": {1: "agents-1"}, "remarks": [], **given}
    return OpenWaits(list(waits), words or ControlState(), **told)  # type: ignore[arg-type]


def show(state: OpenWaits) -> None:
    with page() as terminal:
        print_waiting(state, NOW_MS, terminal)


def test_wait_names_the_owner_of_its_partition() -> None:
    found = waiting(CALL, END, WHOLE)

    assert [found.on(wait) for wait in found.waits] == ["environments-2", "nobody", "the trainer"]


def test_owner_is_guessed_without_information_from_the_broker() -> None:
    found = waiting(CALL, END, owners=None)

    assert [found.on(wait) for wait in found.waits] == ["?", "agents-1?"]


def test_page_has_totals_by_reason_and_a_row_per_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(waiting(CALL, END, WHOLE))

    total, _, call, end, whole = capsys.readouterr().out.splitlines()
    assert total == (
        "3 rollouts wait: 1 step (oldest 90.0 s), 1 decision (oldest 3.0 s), 1 group (oldest 1.0 s)"
    )
    assert call.split("  ")[0] == "r1"
    assert "90.0 s" in call
    assert "30.0 s ago" in call
    assert "in 4.0 s" in end
    assert whole.endswith("1 of 3")


def test_page_shows_pauses_cancels_and_remarks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ControlState()
    words.apply_order(Control("cancel", rollout_id="r1", reason="enough"))
    words.apply_order(Control("cancel", group_id="other", reason="too"))
    words.apply_order(Control("pause"))
    words.apply_order(Control("pause", run_id="mine"))

    show(waiting(CALL, WHOLE, words=words, remarks=["a gap"]))

    said = capsys.readouterr().out
    assert "note: a gap" in said
    assert "agents are paused" in said
    assert "run mine is paused: none of its rollouts begins until `rollcall resume --run" in said
    assert said.count("(cancel was asked)") == 1


def test_long_page_is_cut_and_counts_the_remaining_waits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(waiting(*[CALL] * 45))

    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("5 more waits, none of them older")


def test_one_rollout_is_counted_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    show(waiting(CALL))

    assert capsys.readouterr().out.startswith("1 rollout waits: 1 step (oldest 90.0 s)\n")


def test_empty_page_says_that_nothing_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    show(waiting())

    assert capsys.readouterr().out == "nothing is waited for\n"


def test_json_gives_every_wait_its_place_and_owner() -> None:
    plain = waiting(CALL).plain(NOW_MS)

    assert plain["totals"] == {"step": 1}
    assert plain["waits"] == [
        {
            "rollout_id": "r1",
            "group_id": "g",
            "reason": "step",
            "what": "lake 1/0/0",
            "since_ms": NOW_MS - 90_000,
            "deadline_ms": NOW_MS - 30_000,
            "at": {"group": "t.environments", "topic": "t.env.steps", "partition": 2},
            "on": "environments-2",
        }
    ]


@pytest.mark.parametrize(
    "words",
    [
        *(["waiting"], ["cancel"], ["pause"], ["resume"], ["drain"]),
        *(["dlq", "list"], ["dlq", "show"], ["dlq", "replay"], ["dlq", "drop"]),
    ],
    ids=" ".join,
)
def test_help_of_each_command_has_an_example(words: list[str]) -> None:
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]

    assert f"Example: rollcall {' '.join(words)}" in (command.help or "")
