"""Runs on disk: one folder each, with the recipe, the policy it began with, and its checkpoints."""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from rollcall.compose.files import read_state
from rollcall.compose.runs.recipe import Recipe, other_policy_id, parse_recipe
from rollcall.compose.runs.seed_tasks import digests_of, suite_of, tasks_in
from rollcall.compose.runs.starting_policy import lay_policy, require_policy
from rollcall.compose.teacher_scorer import check_teachers
from rollcall.producers.admission import AdmissionRule, Draws
from rollcall.producers.curators.curator import Curator
from rollcall.producers.curators.curators import curators_of
from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.names import unknown_name
from rollcall.schemas.private_folders import PRIVATE, make_private
from rollcall.schemas.rules import Need
from rollcall.schemas.weights import elements_in

if TYPE_CHECKING:
    from rollcall.compose.cluster import Cluster
    from rollcall.consumers.heldout import HeldOutPlan
    from rollcall.consumers.history.runs.run_curve import HeldOutRule
    from rollcall.consumers.history.runs.training_record import TrainedRun
    from rollcall.consumers.training.training_run import TrainingRun
    from rollcall.schemas.messages import Task
    from rollcall.trainer.config.learner_config import LearnerConfig
    from rollcall.trainer.weights.publication import Publishing

RUN_FILE = "run.json"
RECIPE_FILE = "recipe.toml"
SUMMARY_FILE = "summary.json"
TASKS, TASKS_FILE = "tasks", "tasks.json"
POLICIES = "policies"
"""The folder of a run's policies other than the admitting one."""


@dataclass(frozen=True, slots=True)
class BegunRun:
    """The record of a run that has begun."""

    run_id: str
    policy_id: str
    seed: int
    starts: list[tuple[str, int, int]]
    """Topic, partition and end offset of each at its beginning."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run: the content of `run.json`, and the recipe it was made from."""

    directory: Path
    run_id: str
    policy_id: str
    seed: int
    starts: dict[tuple[str, int], int]
    recipe: Recipe
    part: str = ""
    """The name of the policy if there are several; empty: the only or the admitting one."""

    @property
    def root(self) -> Path:
        """The folder of the run itself, which contains those of its other policies."""
        return self.directory.parent.parent if self.part else self.directory

    @property
    def name(self) -> str:
        """Its name in commands: the run's, or that of one of its other policies."""
        return self.policy_id if self.part else self.run_id

    def others(self) -> "tuple[RunFolder, ...]":
        """The folders of a run's policies other than the admitting one."""
        if self.part:
            return ()
        return tuple(
            replace(
                self,
                directory=self.directory / POLICIES / name,
                policy_id=other_policy_id(self.policy_id, name),
                recipe=self.recipe.of(name),
                part=name,
            )
            for name in self.recipe.others()
        )

    def parts(self) -> "tuple[RunFolder, ...]":
        """Its own folder, and the others."""
        return (self, *self.others())

    @property
    def admitting_id(self) -> str:
        """The id of the policy whose trainer requests the rollouts."""
        suffix = other_policy_id("", self.part) if self.part else ""
        return self.policy_id.removesuffix(suffix)

    @property
    def policy(self) -> Path:
        return self.directory / "policy"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def learner(self) -> "LearnerConfig":
        from rollcall.trainer.config.learner_config import LearnerConfig

        return LearnerConfig.of(self.recipe.learner_values(self.seed))

    def trained(self) -> "TrainedRun":
        """Return what retraining needs; raises Refused for an invalid recipe."""
        from rollcall.consumers.history.runs.training_record import TrainedRun

        return TrainedRun(
            self.run_id,
            self.policy_id,
            self.learner(),
            self.directory,
            self.policy,
            self.publishing(),
        )

    def rule(self) -> AdmissionRule:
        """Return the bound of rollouts in flight; raises Refused for an unworkable recipe."""
        learner = self.learner()
        batch = learner.fresh_groups * learner.members
        return AdmissionRule(
            learner.staleness.bound,
            batch,
            self.recipe.max_running,
            learner.members,
            learner.groups.over_provision,
            learner.refills,
        )

    def publishing(self) -> "Publishing":
        """Return how its weights are published to servers."""
        from rollcall.trainer.weights.publication import Publishing

        policy = self.recipe.policy
        # Runs of one recipe share a URL, below which each has its own folder.
        url = f"{policy.weights_url.rstrip('/')}/{self.policy_id}" if policy.weights_url else ""
        return Publishing(policy.publish, policy.weights, policy.full_every, url, policy.keep_bytes)

    def run(self) -> "TrainingRun":
        from rollcall.consumers.training.training_run import TrainingRun

        return TrainingRun(
            self.run_id,
            self.policy_id,
            self.directory,
            self.starts,
            self.recipe.scoring_id,
            self.rule(),
            self.learner().steps,
            admits=not self.part,
            others={each.policy_id: each.learner().steps for each in self.others()},
            barrier=self.recipe.barrier,
            publishing=self.publishing(),
        )

    def tasks(self) -> "tuple[Task, ...]":
        """Return the tasks of its seeds; raises Refused if a task directory has changed."""
        if not self.recipe.task.tasks:
            return ()
        template = self.recipe.template(self.run_id, self.admitting_id)
        known = read_state(self.root / TASKS_FILE, dict[str, str])
        if known is None:
            msg = f"{self.root / TASKS_FILE} is gone, which says what its tasks were; bring it back"
            raise Refused(msg)
        return tasks_in(self.root / TASKS, template.task, known)

    def draws(self) -> Draws:
        template = self.recipe.template(self.run_id, self.admitting_id)
        seeds = self.recipe.task.seeds
        return Draws(template, self.seed, self.learner().members, seeds, self.tasks())

    def curators(self) -> tuple[Curator, ...]:
        """Make the curators that choose its tasks, with empty state. Raises Refused."""
        return curators_of(self.recipe.curator, self.draws().task_count())

    def held_out_rule(self) -> "HeldOutRule":
        """Return its held-out evaluation, and the scoring whose rewards count."""
        from rollcall.consumers.history.runs.run_curve import HeldOutRule

        return HeldOutRule(self.heldout(), self.recipe.scoring_id)

    def heldout(self) -> "HeldOutPlan":
        from rollcall.consumers.heldout import HeldOutPlan

        wanted = self.recipe.evaluation
        return HeldOutPlan(
            self.recipe.template(self.run_id, self.admitting_id),
            wanted.seeds,
            wanted.every,
            wanted.success_at,
            wanted.goal,
            self.tasks(),
        )


def create(
    state: Path,
    recipe: Recipe,
    text: str,
    seed: int,
    run_id: str = "",
    *,
    tasks: Path | None = None,
) -> RunFolder:
    """Make the folder and its starting policy; errors are refused before anything runs.

    It is named by recipe, time and seed unless an id is given. `tasks` replaces the recipe's folder
    of tasks, if it has one.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    run_id = run_id or f"{recipe.name}-{stamp}-s{seed}"
    folder = RunFolder(state / "runs" / run_id, run_id, run_id, seed, {}, recipe)
    folder.rule()
    _require_one_group_size(folder)
    for part in folder.parts():
        _require_channels(part)
        _require_one_temperature(part)
        require_policy(part.recipe.policy)
    suite = suite_of(recipe, tasks)
    digests = digests_of(suite) if suite else {}
    make_private(folder.directory.parent)
    folder.directory.mkdir(PRIVATE)
    (folder.directory / RECIPE_FILE).write_text(text)
    if suite:
        (folder.directory / TASKS).symlink_to(suite)
        (folder.directory / TASKS_FILE).write_bytes(orjson.dumps(digests))
    for number, part in enumerate(folder.parts()):
        part.directory.mkdir(parents=True, exist_ok=True)
        lay_policy(part.recipe.policy, part.policy, seed + number)
        require_bound(part)
        check_teachers(part.recipe.scorers, part.learner().rules.teacher, part.policy)
        _check_reference(part.learner().rules.reference)
        _check_recorded(state, part)
    return folder


def _check_reference(named: str) -> None:
    """Raise Refused for a missing reference, which would make a trainer die repeatedly."""
    if named and not (Path(named) / "config.json").is_file():
        msg = f"no reference model at {named!r}: no config.json is there; give a local directory"
        raise Refused(msg)


def _check_recorded(state: Path, folder: RunFolder) -> None:
    """Raise Refused if a run to train on is unknown, or has another vocabulary."""
    recorded = folder.learner().recorded
    if recorded is None:
        return
    from rollcall.inference.teacher import vocabulary_digest

    earlier = find(state, recorded.run)
    part = {each.policy_id: each for each in earlier.parts()}.get(recorded.policy_id)
    if part is None:
        known = [each.policy_id for each in earlier.parts()]
        raise unknown_name("policy of that run", recorded.policy_id, known)
    if vocabulary_digest(part.policy) != vocabulary_digest(folder.policy):
        msg = (
            f"[learner.recorded]: run {recorded.run!r} has another vocabulary than this policy, so "
            "its tokens mean nothing here; use [learner.share], which reads text"
        )
        raise Refused(msg)


def require_bound(folder: RunFolder) -> None:
    """Raise Refused if the least bytes to keep exceed the run's bound.

    Computed from its first weights, if they are safetensors; the trainer checks again.
    """
    from rollcall.trainer.weights.publication import check_bound

    publishing, lora = folder.publishing(), folder.recipe.policy.lora
    if publishing.keep_bytes:
        elements = sum(map(elements_in, folder.policy.glob("*.safetensors")))
        published = elements * (2 if publishing.rounds else 4)
        check_bound(publishing.keep_bytes, published, elements * (4 if lora else 12))


def _require_one_group_size(folder: RunFolder) -> None:
    """Raise Refused if policies of one rollout have different group sizes."""
    members = folder.learner().members
    for other in folder.others():
        found = other.learner().members
        if found != members:
            msg = (
                f"policy {other.part!r} learns from groups of {found}, but rollouts come in groups "
                f"of {members}, those of {folder.recipe.admitting()!r}; give both one group_size"
            )
            raise Refused(msg)


def _require_channels(folder: RunFolder) -> None:
    """Raise Refused if an advantage compares scorers but there is only one."""
    rule, scorers = folder.learner().rules.advantage, folder.recipe.scorers
    if rule.needs(Need.CHANNELS) and len(scorers) < 2:
        msg = (
            f"advantage {rule.rule.name!r} compares scorers, and the recipe has only "
            f"{scorers[0]!r}; add one to scorers, or use grpo"
        )
        raise Refused(msg)


def _require_one_temperature(folder: RunFolder) -> None:
    """Raise Refused if sampling and learner use different temperatures."""
    asked, learned = folder.recipe.sampling.temperature, folder.learner().temperature
    if asked != learned:
        msg = (
            f"[sampling] temperature is {asked:g} and the learner's is {learned:g}, so no rollout "
            f"could be trained on; give [learner] temperature = {asked:g} too"
        )
        raise Refused(msg)


def begin(folder: RunFolder, cluster: "Cluster") -> RunFolder:
    """Record the end offset of every topic, where the run begins. Makes the run resumable."""
    names = [cluster.topics.requests, cluster.topics.scored]
    starts = cluster.admin.ends({name: cluster.log.partitions(name) for name in names})
    places = [(topic, partition, at) for (topic, partition), at in sorted(starts.items())]
    body = BegunRun(folder.run_id, folder.policy_id, folder.seed, places)
    # Written last: a folder with this file counts as a run that has begun.
    write_atomically(folder.directory / RUN_FILE, orjson.dumps(body, option=orjson.OPT_INDENT_2))
    return load(folder.directory)


def load(directory: Path) -> RunFolder:
    """Read back the folder of a run or of one of its policies; raises Refused if it is none."""
    if directory.parent.name == POLICIES and not (directory / RUN_FILE).exists():
        others = {each.part: each for each in load(directory.parent.parent).others()}
        if directory.name in others:
            return others[directory.name]
    begun = read_state(directory / RUN_FILE, BegunRun)
    try:
        text = (directory / RECIPE_FILE).read_text()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{directory} is no run's folder: {error}"
        raise Refused(msg) from error
    if begun is None:
        msg = f"{directory} is no run's folder: it has no {RUN_FILE}"
        raise Refused(msg)
    starts = {(topic, partition): at for topic, partition, at in begun.starts}
    recipe = parse_recipe(text, str(directory / RECIPE_FILE))
    return RunFolder(directory, begun.run_id, begun.policy_id, begun.seed, starts, recipe)


def all_of(state: Path) -> list[RunFolder]:
    """Return every run that has begun, and each of its other policies."""
    runs = [load(path.parent) for path in sorted((state / "runs").glob(f"*/{RUN_FILE}"))]
    return [part for run in runs for part in run.parts()]


def find(state: Path, name: str) -> RunFolder:
    """Find a run by id or folder; raises Refused naming the nearest."""
    if Path(name).is_dir():
        return load(Path(name).absolute())
    if (state / "runs" / name / RUN_FILE).exists():
        return load(state / "runs" / name)
    known = {folder.name: folder for folder in all_of(state)}
    if name not in known:
        if not known:
            msg = f"no run {name!r}: there are none in {state / 'runs'}"
            raise Refused(msg)
        raise unknown_name("run", name, known)
    return known[name]


def find_or_none(state: Path, name: str) -> RunFolder | None:
    """Find a run like `find`; None for a run of another machine, known only by the log."""
    with suppress(Refused):
        return find(state, name)
    return None


def require_unchanged(folder: RunFolder) -> None:
    """Raise Refused if a run's recipe is not that of its newest checkpoint, or its bound too small.

    Its trainer would refuse it too, but only after everything has started.
    """
    from rollcall.trainer.checkpoints import checkpoint as checkpoints

    require_bound(folder)
    kept = list(checkpoints.kept(folder.directory / "checkpoints").values())
    # The trainer skips a damaged manifest, with a warning.
    with suppress(OSError, ValueError, KeyError, TypeError, WireError):
        if kept:
            checkpoints.require_recipe(kept[-1], folder.learner().digest(), checkpoints.CHANGED)


def latest_unfinished(state: Path, recipe_name: str) -> RunFolder:
    """Return the run to resume; raises Refused if there is none."""
    folders = sorted(
        (path.parent for path in (state / "runs").glob(f"{recipe_name}-*/{RUN_FILE}")),
        key=lambda path: (path / RUN_FILE).stat().st_mtime,
    )
    for folder in reversed(folders):
        if not (folder / SUMMARY_FILE).exists():
            return load(folder)
    msg = f"no unfinished run of {recipe_name!r} in {state / 'runs'}; start one without --resume"
    raise Refused(msg)
