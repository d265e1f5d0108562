"""The policy that a run begins with: made from a recipe, or a local directory.

A directory is linked, never copied. If the recipe gives it another template, the run has its own
folder with links to its files, and its own `rollcall.json`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall.schemas.errors import Refused

if TYPE_CHECKING:
    from rollcall.compose.runs.recipe import PolicyTable

ABOUT = "rollcall.json"


def require_policy(policy: "PolicyTable") -> None:
    """Raise Refused if the recipe's directory is no Hugging Face directory."""
    if policy.directory and not (_directory(policy) / "config.json").is_file():
        msg = (
            f"policy.directory {policy.directory!r} holds no config.json; give a local Hugging "
            "Face directory, or fetch one: `rollcall policy fetch smollm2 --to "
            f"{policy.directory}`"
        )
        raise Refused(msg)


def lay_policy(policy: "PolicyTable", at: Path, seed: int) -> None:
    """Make the policy at a path that does not exist yet. Raises Refused."""
    from rollcall.inference.policy_dir import make_policy

    if not policy.directory:
        make_policy(
            at, config=policy.config, tokens=policy.tokens, template=policy.template, seed=seed
        )
    elif policy.template:
        _with_template(_directory(policy), at, policy.template)
    else:
        at.symlink_to(_directory(policy))


def _with_template(directory: Path, at: Path, template: dict[str, Any]) -> None:
    at.mkdir()
    for path in directory.iterdir():
        if path.name != ABOUT:
            (at / path.name).symlink_to(path)
    known = directory / ABOUT
    about = json.loads(known.read_text()) if known.is_file() else {}
    about.pop("made_from", None)
    (at / ABOUT).write_text(json.dumps(about | {"template": template}, indent=2) + "\n")


def _directory(policy: "PolicyTable") -> Path:
    return Path(policy.directory).expanduser().absolute()
