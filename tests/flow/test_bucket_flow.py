"""A run on a real broker with weights in a bucket: servers find them through the log alone."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from rollcall.compose.cluster import Cluster
from rollcall.compose.services.embedded import Endpoints
from rollcall.compose.settings import KafkaSettings, RegistrySettings, Settings
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.messages import Event, ModelAnswered, PolicyVersion
from rollcall.schemas.packed import ids_of
from rollcall.schemas.published_weights import HeldWeights
from rollcall.trainer.checkpoints.checkpoint import load_latest
from rollcall.trainer.weights.publication import widened
from tests.support.live_run import LiveRun
from tests.support.rig import role_of
from tests.support.s3_store import s3_server
from tests.support.tiny_run import RECIPE

pytestmark = pytest.mark.broker
STEPS = 2
STORED = RECIPE.replace(
    "[policy]\n",
    '[policy]\npublish = "bfloat16"\nweights = "delta"\nweights_url = "s3://bucket/weights"\n',
).replace("steps = 4", f"steps = {STEPS}\nlr = 1e-6")


@pytest.fixture
def run(services: Endpoints, tmp_path: Path) -> Iterator[LiveRun]:
    """A small run on the broker, with topics of its own and a store of objects beside it."""
    settings = Settings(
        state_dir=tmp_path / "state",
        prefix="bucket.",
        kafka=KafkaSettings(bootstrap_servers=services.bootstrap_servers),
        registry=RegistrySettings(url=services.registry_url),
    )
    with s3_server():
        run = LiveRun(Cluster(services.bootstrap_servers, services.registry_url, settings), STORED)
        yield run
        run.close()


def test_server_adopts_weights_from_a_bucket_and_answers_with_them(
    run: LiveRun,
) -> None:
    # When a run goes on to its end
    engine = role_of(run.loops["models-1"]).engine
    run.until(lambda: run.trainer.done() and engine.version == STEPS)

    # Then all its versions lie in the bucket, deltas among them, and the newest is its weights
    cluster, where = run.cluster, f"bucket/weights/{run.folder.policy_id}"
    said = [
        cluster.codec.decode(record.value, PolicyVersion)
        for record in read_all(cluster.log, [cluster.topics.versions])
    ]
    stored = {f"s3://{name}" for name in fsspec.filesystem("s3").ls(where)}
    held = load_latest(run.folder.run().checkpoints).checkpoint
    assert held is not None
    assert not (run.folder.directory / "weights").exists()
    assert [version.version for version in said] == [0, 1, STEPS]
    assert {part.uri for part in (said[0].full, *said[-1].deltas)} == stored
    assert len(said[-1].deltas) == STEPS
    rounded = run.folder.publishing().of(held.state.weights)
    assert widened(HeldWeights().read(said[-1])) == widened(rounded)

    # And rollouts were answered by the first and by the last; one between may have been passed over
    events = read_all(cluster.log, [cluster.topics.events])
    bodies = (cluster.codec.decode(record.value, Event).body for record in events)
    answered = {
        version
        for body in bodies
        if isinstance(body, ModelAnswered) and body.policy_id == run.folder.policy_id
        for version in ids_of(body.versions).tolist()
    }
    assert {0, STEPS} <= answered
