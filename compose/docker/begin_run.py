"""Create the run of the containers: `python -m rollcall.compose.docker.begin_run RECIPE RUN`.

`rollcall run` does this, and then starts the workers itself; here each is a separate container.
"""

import shutil
import sys

from rollcall.compose.cluster import Cluster, cluster_of
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.settings import load_settings
from rollcall.compose.workers.readiness import patiently

SEED = 7


def begin_run(cluster: Cluster, recipe_name: str, run_id: str) -> None:
    """Make the run's folder in the state directory, unless it has begun.

    Raises Refused for no recipe, Unavailable if the cluster stays unreachable.
    """
    state = cluster.settings.state()
    directory = state / "runs" / run_id
    if (directory / run_folder.RUN_FILE).exists():
        return
    shutil.rmtree(directory, ignore_errors=True)  # made, but not begun: no worker has used it
    recipe, text = load_recipe(recipe_name)
    folder = run_folder.create(state, recipe, text, SEED, run_id)
    patiently(lambda: run_folder.begin(folder, cluster))


if __name__ == "__main__":
    begin_run(cluster_of(load_settings()), *sys.argv[1:])
