"""A tiny run on the broker, whose groups take turns in this process beside something else."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rollcall.compose.cluster import Cluster
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.workers.engines import weights_engine
from rollcall.compose.workers.run_trainer import run_trainer
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers import provision
from rollcall.schemas.messages import ModelCall
from rollcall.schemas.topics import wanted
from tests.support.command_line import ROOT, addresses
from tests.support.tiny_run import RECIPE


def _one(call: ModelCall) -> str:
    return "1"


class LiveRun:
    """One worker of each group; beside the run's own policy a scripted one called `policy`."""

    def __init__(self, cluster: Cluster, text: str = RECIPE) -> None:
        self.cluster = cluster
        self._clusters = [cluster]
        recipe = parse_recipe(text, "tiny")
        folder = run_folder.create(cluster.settings.state(), recipe, text, seed=3)
        prefix, policies = cluster.settings.prefix, [folder.policy_id, "policy", "away"]
        topics = wanted(prefix, policies)
        provision.apply(cluster.admin, cluster.registry, topics)
        self.folder = run_folder.begin(folder, cluster)
        engine = weights_engine(folder.policy_id, folder.policy, cluster.settings.models)
        self.loops = {
            "agents-1": self._workshop("agents-1").agents("agents-1"),
            "models-1": self._workshop("models-1").models("models-1", engine),
            "models-2": self._workshop("models-2").models(
                "models-2", ScriptedEngine("policy", _one)
            ),
            "environments-1": self._workshop("environments-1").environments("environments-1"),
            "rewards-1": self._workshop("rewards-1").rewards(
                "rewards-1", recipe.scorers, recipe.scoring_id
            ),
        }
        self.trainer = run_trainer(self._workshop("training-1"), "training-1", self.folder)

    def _workshop(self, name: str) -> WorkerFactory:
        """What one worker is made with; its clients bear its name."""
        own = replace(self.cluster, name=name)
        self._clusters.append(own)
        return WorkerFactory(own.log, own.codec, own.topics, own.settings, watched=False)

    def close(self) -> None:
        """Close what was opened for it, the cluster too."""
        for cluster in self._clusters:
            cluster.close()

    def until(
        self, condition: Callable[[], bool], *, resting: str = "", deadline_s: float = 180
    ) -> None:
        """Let everybody but one who rests take turns until the condition holds."""
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline, f"it does not hold after {deadline_s:g} s"
            for name, loop in self.loops.items():
                if name != resting:
                    loop.turn(0.004)
            if not self.trainer.done():
                self.trainer.turn(0.0)

    def environment(self) -> dict[str, str]:
        """What a program needs to find the cluster, the run, and `rollcall` itself."""
        commands = self.cluster.settings.state() / "bin"
        if not commands.is_dir():
            commands.mkdir()
            (commands / "rollcall").write_text(
                f'exec {sys.executable} -P -m rollcall.compose.cli "$@"\n'
            )
            (commands / "rollcall").chmod(0o755)
        others = {name: value for name, value in os.environ.items() if "ROLLCALL" not in name}
        return {
            **others,
            **addresses(self.cluster),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "ROLLCALL_STATE_DIR": str(self.cluster.settings.state()),
            "RUN": self.folder.run_id,
        }

    def beside(self, *words: str, cwd: Path, resting: str = "", **variables: str) -> str:
        """Run a program to its end while the others take turns; return what it printed."""
        with (cwd / "printed.txt").open("w+") as printed:
            process = subprocess.Popen(
                words, cwd=cwd, stdout=printed, stderr=subprocess.STDOUT,
                env={**self.environment(), **variables},
            )  # fmt: skip
            try:
                self.until(lambda: process.poll() is not None, resting=resting)
            finally:
                process.kill()
                process.wait(10)
            printed.seek(0)
            text = printed.read()
        assert process.returncode == 0, text
        return text
