"""Commands over runs: the list of them, and what is done once one is over."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compose.cluster import Cluster

runs_app = typer.Typer(invoke_without_command=True)


def add_to(app: typer.Typer, cluster: "Callable[[], Cluster]") -> None:
    """Register these commands; `cluster` connects when one of them runs."""
    app.add_typer(runs_app, name="runs")

    @runs_app.callback()
    def list_runs(
        context: typer.Context,
        json: Annotated[bool, typer.Option("--json", help="As JSON instead of a table.")] = False,
    ) -> None:
        """List every run that has a folder here or a step in the log; or retire one.

        Example: rollcall runs --json
        """
        if context.invoked_subcommand is not None:
            return
        import orjson

        from compose.look import page
        from compose.runs import listing

        found = listing.list_runs(cluster())
        if json:
            typer.echo(orjson.dumps(listing.plain(found), option=orjson.OPT_INDENT_2))
        elif not found:
            typer.echo("no run yet; `rollcall demo` makes one")
        else:
            with page() as terminal:
                terminal.print(listing.table(found))

    @runs_app.command()
    def retire(
        run: Annotated[str, typer.Argument(help="A run's id or folder.")],
        folder: Annotated[
            bool, typer.Option("--folder", help="Remove its checkpoints, weights and logs too.")
        ] = False,
        yes: Annotated[
            bool, typer.Option("--yes", help="Do it; without this it is only shown.")
        ] = False,
    ) -> None:
        """Remove the calls topic and the consumer groups of a run that is over.

        Refused while something of it is open. Its history stays: the journal, the trajectories
        and `train.steps` hold it.

        Example: rollcall runs retire lake-any-start-20261121-155458-s7 --yes
        """
        from compose.runs import retirement as retiring

        here = cluster()
        left = retiring.left_by(here, run, folder=folder)
        if yes:
            retiring.remove(here, left)
        for line in left.lines():
            typer.echo(f"{'removed' if yes else 'would remove'} {line}")
        if not left.lines():
            typer.echo(f"nothing is left of run {left.run_id}")
        elif not yes:
            typer.echo("do it with --yes")
