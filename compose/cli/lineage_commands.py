"""Commands that go on from what is recorded, or look at it: trajectory, retrain, fork."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compose.cluster import Cluster


def add_to(app: typer.Typer, cluster: "Callable[[], Cluster]") -> None:
    """Register these commands; `cluster` connects when one of them runs."""

    @app.command()
    def trajectory(
        rollout: Annotated[str, typer.Argument(help="The rollout's id.")] = "",
        tokens: Annotated[
            bool, typer.Option("--tokens", help="Every token, its log-probability and version.")
        ] = False,
        diff: Annotated[
            tuple[str, str] | None,
            typer.Option(metavar="A B", help="Instead of one: two, side by side, where they part."),
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="All of it, as one object.")] = False,
    ) -> None:
        """Show what happened in one rollout, turn by turn, from its journal.

        Every try and attempt, what was ignored and why, rewards by scorer, where the time went.
        With --diff two rollouts of one group, or a fork and its parent.

        Example: rollcall trajectory 3f2a1c --tokens
        """
        from compose.trajectory import show_difference, show_trajectory
        from schemas.errors import Refused

        if bool(rollout) == (diff is not None):
            msg = f"give a rollout's id or --diff A B; found {'both' if diff else 'neither'}"
            raise Refused(msg)
        if diff is None:
            show_trajectory(cluster(), rollout, tokens=tokens, as_json=json)
        elif tokens:
            msg = "--tokens is of one rollout; leave it out with --diff"
            raise Refused(msg)
        else:
            show_difference(cluster(), *diff, as_json=json)

    @app.command()
    def retrain(
        run: Annotated[str, typer.Argument(help="A run's id or folder.")],
        steps: Annotated[str, typer.Option(metavar="A..B", help="Which steps; or one.")],
        version: Annotated[
            int | None, typer.Option(help="Of the branch that led there, not to the newest.")
        ] = None,
        json: Annotated[Path | None, typer.Option(help="Write the report there.")] = None,
    ) -> None:
        """Train steps of a run again from the record, and compare the weights after each.

        Begins at the newest kept checkpoint before A. Writes no record and nothing of the run.
        Exit code 1 where weights differ: the bits are the same on the same CPU with the same
        ROLLCALL_TRAINING__THREADS.

        Example: rollcall retrain lake-any-start-20261121-155458-s7 --steps 21..24
        """
        import orjson

        from compose import retrain as again
        from compose.files import refuse_no_folder
        from compose.runs import run_folder

        asked = again.asked_for(steps)
        refuse_no_folder(json)
        here = cluster()
        report = again.retrain(
            here.log,
            here.codec,
            here.topics,
            run_folder.find(here.settings.state(), run),
            asked,
            version=version,
            threads=here.settings.training.threads,
            tell=typer.echo,
        )
        if json is not None:
            json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        raise typer.Exit(1 if report["differing"] else 0)

    @app.command()
    def fork(
        rollout: Annotated[str, typer.Argument(help="The id of the rollout to fork.")],
        at: Annotated[int, typer.Option(min=0, help="The first turn that is live; from 0 on.")],
        policy: Annotated[
            str, typer.Option(help="Another policy to go on with; it must share its tokens.")
        ] = "",
        seed: Annotated[
            str, typer.Option(help="Of sampling; left out, each fork samples anew.")
        ] = "",
        n: Annotated[int, typer.Option("--n", min=1, help="So many forks, as one group.")] = 1,
        wait: Annotated[bool, typer.Option("--wait", help="Watch until all are scored.")] = False,
        timeout_s: Annotated[float, typer.Option(help="How long to wait.")] = 600.0,
    ) -> None:
        """Publish a rollout whose first turns are those of a recorded one and whose rest is live.

        The recorded answers are given again and its environments stepped again; the live calls go
        on from the recorded tokens. Forks are of purpose "replay": nothing trains on them. At turn
        0 with the parent's own seed, the same weights give the same first answer. With --n, the
        seed of fork K is SEED-K.

        Example: rollcall fork 3f2a1c --at 2 --n 8 --wait
        """
        from compose.fork import fork as publish_forks

        publish_forks(
            cluster(),
            rollout,
            turn=at,
            policy_id=policy,
            seed=seed,
            count=n,
            wait=wait,
            timeout_s=timeout_s,
        )
