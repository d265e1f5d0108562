"""`rollcall trajectory`."""

from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.compose.cli.connection import cluster

if TYPE_CHECKING:
    from rich.console import Console

Rollout = Annotated[str, typer.Argument(help="The rollout's id.")]
Tokens = Annotated[
    bool, typer.Option("--tokens", help="Show every token with its log-probability and version.")
]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="Compare two rollouts from the point where they diverge."),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]


def trajectory(
    rollout: Rollout = "", tokens: Tokens = False, diff: Diff = None, json: Json = False
) -> None:
    """Show one rollout from its journal, turn by turn.

    Shows all tries and attempts, ignored entries with the reason, rewards by scorer, and the time
    of each phase. With --diff it compares two rollouts of a group, or a fork and its parent.

    Example: rollcall trajectory 3f2a1c --tokens
    """
    from rollcall.schemas.errors import Refused

    if bool(rollout) == (diff is not None):
        msg = f"give a rollout's id or --diff A B; found {'both' if diff else 'neither'}"
        raise Refused(msg)
    if diff is None:
        _show_rollout(rollout, tokens=tokens, json=json)
    elif tokens:
        msg = "--tokens is of one rollout; leave it out with --diff"
        raise Refused(msg)
    else:
        _show_difference(*diff, json=json)


def _show_rollout(rollout_id: str, *, tokens: bool, json: bool) -> None:
    """Show a rollout in any state; an id may have been reused after its rollout ended."""
    from rollcall.compose.pages.rollout_page import plain_story, print_story
    from rollcall.compose.terminal import emit
    from rollcall.consumers.history.rollouts.rollout_story import scores_of, stories_of

    history = cluster()
    scored = [(story, scores_of(history, story)) for story in stories_of(history, rollout_id)]

    def show(terminal: "Console") -> None:
        for story, scores in scored:
            print_story(story, scores, terminal, tokens=tokens)

    plain = {"rollouts": [plain_story(*each) for each in scored]} if json else None
    emit(plain, show, json=json, one_line=True)


def _show_difference(first: str, second: str, *, json: bool) -> None:
    """Show the difference of the last rollouts of two ids."""
    from rollcall.compose.pages.divergence_page import print_divergence
    from rollcall.compose.terminal import emit
    from rollcall.consumers.history.rollouts.divergence import find_divergence, relation
    from rollcall.consumers.history.rollouts.rollout_story import latest, stories_of
    from rollcall.schemas.errors import Refused

    if first == second:
        msg = f"--diff compares two rollouts, found {first!r} twice"
        raise Refused(msg)
    history = cluster()
    left, right = (latest(stories_of(history, name)) for name in (first, second))
    divergence, how = find_divergence(left, right), relation(left, right)
    emit(
        {"relation": how} | divergence.plain(),
        lambda terminal: print_divergence(left, right, divergence, how, terminal),
        json=json,
        one_line=True,
    )
