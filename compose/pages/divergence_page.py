"""Two rollouts side by side, from the moment where they differ."""

from itertools import zip_longest

from rich.console import Console, Group
from rich.table import Table

from rollcall.compose.console import safe
from rollcall.compose.pages.agent_lines import describe_asked
from rollcall.compose.pages.rollout_page import counted, short
from rollcall.consumers.history.rollouts.divergence import Divergence, Moment
from rollcall.consumers.history.rollouts.rollout_story import Story
from rollcall.schemas.untrusted_text import printable

CONTEXT = 2
"""The number of common moments that are shown before the difference."""


def print_divergence(
    left: Story, right: Story, divergence: Divergence, relation: str, terminal: Console
) -> None:
    """Print two rollouts side by side from the moment where they differ."""
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


def _lived(moment: Moment) -> str:
    """Return one moment as a cell."""
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
