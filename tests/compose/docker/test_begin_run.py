"""The run that containers share is made once, whoever is killed meanwhile."""

from pathlib import Path

from compose.docker.begin_run import begin_run
from compose.runs import run_folder
from compose.settings import Settings
from tests.support.memory_cluster import MemoryCluster
from tests.support.tiny_run import RECIPE


def test_a_run_is_begun_once_and_made_again_where_it_was_not_begun(tmp_path: Path) -> None:
    # Given a recipe, and a folder that somebody began to make and was killed
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
