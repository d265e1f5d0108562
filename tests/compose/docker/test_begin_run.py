"""The run that containers share is created once, even when a creator is killed."""

from pathlib import Path

from rollcall.compose.docker.begin_run import begin_run
from rollcall.compose.runs import run_folder
from rollcall.compose.settings import Settings
from tests.support.memory_cluster import MemoryCluster
from tests.support.tiny_run import RECIPE


def test_run_is_created_once_even_after_a_killed_first_try(tmp_path: Path) -> None:
    # Given a recipe, and a folder left by a creator that was killed
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    cluster = MemoryCluster(settings=Settings(state_dir=tmp_path / "state"))
    directory = tmp_path / "state" / "runs" / "mine"
    (directory / "policy").mkdir(parents=True)

    # When the run is begun twice
    begin_run(cluster, str(recipe), "mine")
    noted = (directory / run_folder.RUN_FILE).stat()
    begin_run(cluster, str(recipe), "mine")

    # Then it is there under its name, with its policy, and was made once
    folder = run_folder.find(tmp_path / "state", "mine")
    assert folder.policy_id == folder.run_id == "mine"
    assert (folder.policy / "config.json").exists()
    assert (directory / run_folder.RUN_FILE).stat() == noted
