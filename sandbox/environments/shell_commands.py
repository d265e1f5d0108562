"""A shell as an environment: an action is a command, an observation its exit code and output.

The first line of an observation states how the command ended, then follows its output, byte for
byte as far as it is UTF-8. The line is one of these (after `ended`, the next command begins in a
new shell: directory and variables are reset, and no process of the old shell runs)

    exit code 0
    exit code 1 and the shell ended; the next command begins in a new one
    timed out after 30 s and was killed; the next command begins in a new shell
    the box cannot be used any more: ...

where the last is shown if the agent's processes have used up the box's memory: the episode ends
with a reward of 0. `info` holds `exit_code` (-1 for a command that timed out), `timed_out` and
`elided_chars`; at the end of an episode with a check also `check_exit_code`; and `artefacts`: the
full output if part of it is left out, and at the end of an episode with a task the patch. It holds
no times, and the path of the box's own directory, which differs from box to box, is shown as `~`.
So the same actions give the same observations, except for commands whose output depends on the
clock, randomness, process ids or the host.
"""

import asyncio
import inspect
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from rollcall.sandbox.agents.agent_box import SHOW_NOTHING
from rollcall.sandbox.artefacts import KEY, OUTPUT, Artefact, ArtefactSpool, keep
from rollcall.sandbox.boxes.box import AUTO, Box, CommandResult, Spec, driver
from rollcall.sandbox.boxes.frame import TIMED_OUT
from rollcall.sandbox.boxes.probe import probe
from rollcall.sandbox.boxes.shell import Shell
from rollcall.sandbox.environment import Observation
from rollcall.sandbox.environments.shell_config import ShellConfig, read_config
from rollcall.sandbox.environments.task_work import TaskWork
from rollcall.sandbox.host import Host
from rollcall.sandbox.private_places import check_given, mounts
from rollcall.sandbox.tasks.harbor import HarborTask
from rollcall.sandbox.tasks.testbed import lay_out
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed

LISTED = 40
"""The number of names of the directory that are shown at the start."""
EPISODE_BYTES = 50_000_000
"""The most bytes of outputs that one episode stores as objects; the last may be cut off."""

log = structlog.get_logger()


def _signature() -> inspect.Signature:
    """Return a signature of the fields of ShellConfig and the worker's host."""
    fields = inspect.signature(ShellConfig).parameters.values()
    host = inspect.Parameter("host", inspect.Parameter.KEYWORD_ONLY, default=None)
    return inspect.Signature([*fields, host])


class ShellEnvironment:
    """One shell in one box; its arguments are the fields of ShellConfig."""

    replayable: bool
    """The config's `replay`; it has no class attribute, which would hold for all configs."""
    slot = "box"
    __signature__ = _signature()

    def __init__(self, host: Host | None = None, **config: Any) -> None:
        """Use boxes of the host, else boxes of its own. Raises WorkFailed(`bad_config`)."""
        self._host = host
        try:
            self._config = read_config(config)
        except Refused as error:
            raise WorkFailed(FailureCode.BAD_CONFIG, str(error), retriable=False) from error
        self.replayable = self._config.replay
        self._box: Box | None = None
        self._shell: Shell | None = None
        self._work: TaskWork | None = None
        self._steps = 0
        self._kept_bytes = 0
        """The bytes of outputs that were stored as objects in this episode."""
        self._half_done = False
        self._died = ""
        """The reason why its box died; empty while it lives."""

    async def open(self, seed: int) -> Observation:
        """Open a box with the task's files; the seed has no effect."""
        del seed
        await self.close()
        config = self._config
        task = await _task(config)
        spec = config.spec(task)
        workdir = task.placed(spec.image) if task else ""
        if workdir:
            spec = replace(spec, writable=(workdir,))
        box = self._box = await self._lend(spec)
        box.workdir = workdir
        with self._mourned():
            try:
                self._work = await self._furnish(box, task, workdir)
            except WorkFailed:
                await _died_unused(box)  # a box without memory fails here with another error
                raise
        self._shell = self._shell_in(box, stateful=config.stateful)
        self._steps = self._kept_bytes = 0
        self._half_done = False
        return Observation(_opening(config, task, workdir or "~"))

    async def step(self, action: str) -> Observation:
        """Run any command; one that makes the box unusable ends the episode.

        Raises WorkFailed(`box_died`), and `history_needed` after a step that was cancelled, since
        its effect is unknown.
        """
        if self._shell is None or self._box is None:
            msg = "environment 'shell' is asked for a step before it was opened"
            raise WorkFailed(FailureCode.RAISED, msg, retriable=False)
        if self._half_done:
            msg = "the step before was cancelled while it ran; send this one with its history"
            raise WorkFailed(FailureCode.HISTORY_NEEDED, msg, retriable=True)
        self._half_done = True
        with self._mourned():
            try:
                seen = await self._seen(self._shell, action)
            except WorkFailed as error:
                if error.code != FailureCode.BOX_SPOILT:
                    raise
                seen = _spoilt(str(error))
        self._half_done = False
        return seen

    async def _seen(self, shell: Shell, action: str) -> Observation:
        config = self._config
        with closing(ArtefactSpool(EPISODE_BYTES - self._kept_bytes)) as whole:
            tell = whole.write if self._host else None
            ran = await shell.run(action, timeout_s=config.timeout_s, whole=tell)
            left = await self._output(whole) if ran.elided_chars else []
        self._steps += 1
        finished = _finishes(ran, config.finish_word)
        cut = not finished and 0 < config.max_steps <= self._steps
        info: dict[str, object] = {
            "exit_code": ran.exit_code,
            "timed_out": ran.timed_out,
            "elided_chars": ran.elided_chars,
        }
        reward = await self._end(info, left) if finished or cut else 0.0
        if left:
            info[KEY] = [each.as_info() for each in left]
        text = f"{_how(ran, config.timeout_s)}\n{ran.output}"
        return Observation(text, reward, finished, cut, info)

    async def _output(self, whole: ArtefactSpool) -> list[Artefact]:
        """Store a command's full output within the episode's bound, if the store is available."""
        if self._host is None or self._kept_bytes >= EPISODE_BYTES:
            return []
        try:
            kept = await keep(self._host, OUTPUT, whole)
        except WorkFailed as error:
            log.warning("output_not_kept", session=self._host.place, error=str(error))
            return []
        self._kept_bytes += kept.size
        return [kept]

    async def _end(self, info: dict[str, object], left: list[Artefact]) -> float:
        """End all programs in the box, then take the patch and run the check.

        The programs are those that commands left running, and an agent that runs there.
        """
        if self._shell is None or self._box is None:
            return 0.0
        await self._shell.close()
        await self._box.end_programs()
        if self._work and self._host:
            taken = await self._work.taken(self._box, self._host)
            left += taken.artefacts
            info |= taken.info
        return await self._judge(info, self._box) if self._config.check else 0.0

    @contextmanager
    def _mourned(self) -> Iterator[None]:
        """Record the reason if the box dies within."""
        try:
            yield
        except WorkFailed as error:
            self._died = str(error) if error.code == FailureCode.BOX_DIED else ""
            raise

    async def close(self) -> None:
        box, self._box, self._shell = self._box, None, None
        reason, self._died = self._died, ""
        if box and self._host:
            await self._host.boxes.give_back(box, reason)
        elif box:
            await box.close()

    async def _furnish(self, box: Box, task: HarborTask | None, workdir: str) -> TaskWork | None:
        """Put the initial files into a box; return the task's work, if there is a task."""
        tree = await lay_out(box, task, workdir) if task else ""
        if self._config.path:
            await asyncio.to_thread(check_given, self._config.path, checkout=True)
            await box.copy_in(Path(self._config.path))
        for name, content in self._config.files.items():
            await box.write(name, content.encode("utf-8", "replace"))
        return TaskWork(task, tree, workdir) if task else None

    async def _lend(self, spec: Spec) -> Box:
        name = self._config.box
        if self._host:
            if (agent := self._config.agent) is not None:
                imports = await self._host.imports(str(agent.get("agent")), agent)
                if self._host.boxes.driver_of(name, spec) not in SHOW_NOTHING:
                    shown = await asyncio.to_thread(mounts, agent, imports)
                    spec = replace(spec, mounts=shown)
            return await self._host.boxes.lend(name, spec, self._config.mode)
        return await driver(name or AUTO).open(spec)

    async def _judge(self, info: dict[str, object], box: Box) -> float:
        judge = self._shell_in(box, stateful=True)
        ran = await judge.run(self._config.check, timeout_s=self._config.check_timeout_s)
        await judge.close()
        info["check_exit_code"] = ran.exit_code
        return float(ran.exit_code == 0)

    def _shell_in(self, box: Box, *, stateful: bool) -> Shell:
        config = self._config
        workdir = self._work.workdir if self._work else ""
        return Shell(
            box,
            stateful=stateful,
            workdir=workdir,
            head_chars=config.head_chars,
            tail_chars=config.tail_chars,
        )


async def _task(config: ShellConfig) -> HarborTask | None:
    """Read the task anew for each episode: its directory may have changed."""
    if config.task is None:
        return None
    try:
        return await asyncio.to_thread(config.task.find)
    except Refused as error:
        raise WorkFailed(FailureCode.BAD_CONFIG, str(error), retriable=False) from error


def _opening(config: ShellConfig, task: HarborTask | None, place: str) -> str:
    found = {name.partition("/")[0] for name in config.files}
    if task and task.testbed and place == "~":
        found.update(os.listdir(task.testbed))
    if config.path:
        found.update(os.listdir(config.path))
    listed = [name.encode("utf-8", "replace").decode() for name in sorted(found)]
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    holds = f"holds {' '.join(listed[:LISTED])}{more}" if listed else "is empty"
    told = f"Each message is run as a command by /bin/sh in {place}"
    told += f", which {holds}." if place == "~" else "."
    if config.finish_word:
        told += f" To finish, print {config.finish_word} as the first line."
    instruction = config.instruction or (task.instruction.strip() if task else "")
    return f"{instruction}\n\n{told}" if instruction else told


async def _died_unused(box: Box) -> None:
    """Raise WorkFailed if an unused box cannot run an empty command."""
    try:
        await probe(box)
    except WorkFailed as error:
        if error.code != FailureCode.BOX_SPOILT:
            raise
        msg = "the box has too little memory for the files that an episode begins with; "
        msg += "raise `limits.memory_bytes`, or `environment.memory_mb` of the task"
        raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False) from error


def _spoilt(why: str) -> Observation:
    """Return the last observation of an episode whose agent made the box unusable."""
    info = {"exit_code": TIMED_OUT, "timed_out": False, "elided_chars": 0, "box_spoilt": why}
    return Observation(f"the box cannot be used any more: {why}\n", 0.0, True, False, info)


def _how(ran: CommandResult, timeout_s: float) -> str:
    if ran.timed_out:
        how = f"timed out after {timeout_s:g} s and was killed"
        return f"{how}; the next command begins in a new shell"
    if ran.fresh:
        how = f"exit code {ran.exit_code} and the shell ended"
        return f"{how}; the next command begins in a new one"
    return f"exit code {ran.exit_code}"


def _finishes(ran: CommandResult, word: str) -> bool:
    """Return True if the output's first non-blank line is the word, as in mini-swe-agent."""
    if not word or ran.exit_code != 0:
        return False
    return ran.output.lstrip().partition("\n")[0].strip() == word
