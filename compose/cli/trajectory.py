"""`rollcall trajectory`."""

from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.table import Table

from rollcall.compose.cli.connection import cluster
from rollcall.compose.console import safe
from rollcall.schemas.untrusted_text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from rollcall.consumers.history.rollouts.divergence import Divergence, Moment
    from rollcall.consumers.history.rollouts.rollout_story import Story

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


CONTEXT = 2
"""The number of common moments that are shown before the difference."""


def print_divergence(
    left: "Story", right: "Story", divergence: "Divergence", relation: str, terminal: Console
) -> None:
    """Print two rollouts side by side from the moment where they differ."""
    from rollcall.compose.pages.rollout_page import counted

    events, turns = counted(len(divergence.same), "event"), counted(divergence.turns, "turn")
    common = f"the same for {events}, {turns} of the model"
    if not divergence.left and not divergence.right:
        words = filter(None, (relation, f"{common}: they do not part"))
        terminal.print(Group(*map(safe, words)))
        return
    table = Table(box=None, padding=(0, 2), show_edge=False)
    for name in ("", left.rollout_id, right.rollout_id):
        table.add_column(name, overflow="fold")
    begin = max(0, len(divergence.same) - CONTEXT)
    for number, moment in enumerate(divergence.same[begin:], begin):
        table.add_row(safe(f"{number}", style="dim"), safe(_lived(moment), style="dim"), "=")
    pairs = zip_longest(divergence.left, divergence.right)
    for number, (one, other) in enumerate(pairs, len(divergence.same)):
        table.add_row(f"{number}", *(safe(_lived(each) if each else "-") for each in (one, other)))
    strange = "they share neither group nor parent"
    terminal.print(Group(safe(relation or strange), safe(f"{common}, then they part"), table))


def _lived(moment: "Moment") -> str:
    """Return one moment as a cell."""
    from rollcall.compose.pages.agent_lines import describe_asked
    from rollcall.compose.pages.rollout_page import counted, short

    remarks = []
    if moment.kind == "model":
        remarks.append(counted(len(moment.token_ids), "token"))
    if moment.kind == "environment":
        remarks.append(f"reward {moment.reward:+g}")
    remarks += ["ends"] * moment.ends + ["recorded"] * moment.recorded
    small = f"  ({', '.join(remarks)})" if remarks else ""
    asked = describe_asked(moment.session, moment.text)
    kind, text = (moment.kind, moment.text) if asked is None else ("agent", asked)
    return f"{kind}  {printable(short(text))}{small}"
