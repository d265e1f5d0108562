"""The policy that a models worker serves, by weights, a script, or an external server."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rollcall.schemas.errors import Refused

if TYPE_CHECKING:
    from rollcall.compose.runs.run_folder import RunFolder
    from rollcall.compose.settings import Settings
    from rollcall.inference.engine import Engine


@dataclass(frozen=True, slots=True)
class Served:
    """A user's options of a models worker."""

    run: str
    """The run's id or folder; "": a policy without a run."""
    policy: str
    directory: Path | None
    script: str
    tasks: Path | None
    gold_share: float | None
    engine: str
    """The engine of the weights; "": that of the settings."""

    def settings(self, settings: "Settings") -> "Settings":
        """Return the settings with this engine."""
        if not self.engine:
            return settings
        models = settings.models.model_copy(update={"engine": self.engine})
        return settings.model_copy(update={"models": models})

    def check(self, settings: "Settings") -> None:
        """Raise Refused unless this is one policy by one engine; nothing is loaded."""
        source = bool(self.directory) or self._by_server(settings)
        if bool(self.run) + source + bool(self.script) != 1 or bool(self.run) == bool(self.policy):
            msg = (
                "give --run, or --policy with --directory, or --policy with --script, or --policy "
                "with --engine openai, which needs a directory for its tokenizer alone"
            )
            raise Refused(msg)
        if self.script and self.engine:
            msg = "--engine is for weights, and --script has none; leave one of them out"
            raise Refused(msg)

    def light_engine(self, settings: "Settings") -> "Engine | None":
        """Return the engine if it needs neither weights nor a run. Raises Refused."""
        from rollcall.compose.workers.engines import server_engine

        if self.script:
            return scripted_engine(self.policy, self.script, self.tasks, self.gold_share)
        if self._by_server(settings):
            return server_engine(self.policy, self.directory, self.settings(settings).models)
        return None

    def loaded(self, folder: "RunFolder | None", settings: "Settings") -> "Engine":
        """Return the engine on the weights of a run or of a directory. Raises Refused."""
        from rollcall.compose.workers.engines import weights_engine

        chosen = self.settings(settings)
        if folder is not None:
            return run_engine(folder, chosen)
        return weights_engine(self.policy, cast(Path, self.directory), chosen.models)

    def capacity(self, settings: "Settings") -> int | None:
        """Return the calls that an external server takes at once; None if `max_batch` sets it."""
        return settings.models.openai.concurrency if self._by_server(settings) else None

    def _by_server(self, settings: "Settings") -> bool:
        from rollcall.compose.workers.engines import OPENAI

        named = self.settings(settings).models.engine
        return named == OPENAI and not self.run and not self.script


def scripted_engine(
    policy_id: str, reference: str, tasks: Path | None = None, gold_share: float | None = None
) -> "Engine":
    """Make a policy without weights: a script `module:function`, or one of ours by name.

    Ours use the solutions of the tasks in a folder. Raises Refused.
    """
    from rollcall.inference.scripted import ScriptedEngine
    from rollcall.inference.text_script import added_by, load_script, text_script
    from rollcall.sandbox.tasks.listing import read_tasks
    from rollcall.sandbox.tasks.scripted_policies import NULL, POLICIES, scripted_policy

    if reference not in POLICIES and (tasks is not None or gold_share is not None):
        msg = f"--tasks and --gold-share are for {', '.join(POLICIES)}; the script is {reference!r}"
        raise Refused(msg)
    if reference in (set(POLICIES) - {NULL}) and tasks is None:
        msg = (
            f"policy {reference!r} applies the gold patches of tasks; name their folder by --tasks"
        )
        raise Refused(msg)
    speak = (
        scripted_policy(reference, read_tasks(tasks) if tasks else [], gold_share)
        if reference in POLICIES
        else load_script(reference)
    )
    return ScriptedEngine(policy_id, text_script(speak, reference), render=added_by)


def run_engine(folder: "RunFolder", settings: "Settings") -> "Engine":
    """Make the engine of a run's policy: on its weights, or by its recipe's script."""
    from rollcall.compose.runs.run_folder import TASKS
    from rollcall.compose.workers.engines import check_exact, weights_engine

    policy = folder.recipe.policy
    if not policy.script:
        exact = folder.learner().computation.exact
        check_exact(settings, folder.recipe)
        return weights_engine(folder.policy_id, folder.policy, settings.models, exact=exact)
    tasks = (folder.directory / TASKS).resolve() if folder.recipe.task.tasks else None
    return scripted_engine(folder.policy_id, policy.script, tasks, policy.gold_share)
