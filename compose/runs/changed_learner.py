"""A run's learner with some settings changed: `learner.loss.name=m2po`."""

import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollcall.compose.runs.run_folder import RunFolder
from rollcall.schemas.errors import Refused

if TYPE_CHECKING:
    from rollcall.trainer.config.learner_config import LearnerConfig


def changed_learner(folder: RunFolder, changes: Sequence[str]) -> "LearnerConfig":
    """Return the recipe's learner with each `learner.KEY=VALUE` applied; raises Refused."""
    from rollcall.trainer.config.learner_config import LearnerConfig

    values = folder.recipe.learner_values(folder.seed)
    for change in changes:
        path, is_there, text = change.partition("=")
        keys = path.strip().split(".")
        if not is_there or keys[0] != "learner" or len(keys) not in (2, 3) or not all(keys):
            msg = (
                f"--with {change!r} is no setting of the learner; write learner.KEY=VALUE or "
                "learner.RULE.OPTION=VALUE, such as learner.loss.name=m2po"
            )
            raise Refused(msg)
        _set(values, keys[1:], _value(text.strip()))
    return LearnerConfig.of(values)


def _set(values: dict[str, Any], keys: list[str], value: object) -> None:
    """Set a value, or an option of a rule; a new rule name drops the options of the old one."""
    if len(keys) == 1:
        values[keys[0]] = value
        return
    rule, option = keys
    known = values.get(rule)
    given = dict(known) if isinstance(known, dict) else {"name": known} if known else {}
    values[rule] = {"name": value} if option == "name" else {**given, option: value}


def _value(text: str) -> object:
    """Parse a value as TOML, else keep it as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
