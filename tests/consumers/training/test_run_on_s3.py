"""A run with weights in an object store: published, served, repaired and retrained."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from s3fs import S3FileSystem

from rollcall.compose.runs.export_policy import export
from rollcall.compose.workers.engines import weights_engine
from rollcall.consumers.models import versions
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights
from rollcall.trainer.checkpoints.checkpoint import load_latest
from rollcall.trainer.weights import weights_files
from tests.support.s3_store import Wire, s3_server
from tests.support.tiny_run import RECIPE, World

STORED = RECIPE.replace(
    "[policy]\n", '[policy]\nweights = "delta"\nweights_url = "s3://bucket/weights/"\n'
).replace("n_embd = 16", "n_embd = 64")


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    with s3_server(made):
        yield made


def test_a_run_in_a_bucket_resumes_is_repaired_and_retrained(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "RETRY_S", 0.0)
    monkeypatch.setattr(S3FileSystem, "retries", 1)  # it would sleep between its own
    world = World(tmp_path, STORED)
    where = f"s3://bucket/weights/{world.folder.policy_id}"
    world.train(world.trainer(), steps=2)

    # Only weights are there, only checkpoints here, and no credential is written down
    assert world.folder.run().weights == where
    assert not (world.folder.directory / "weights").exists()
    assert all(v.full.uri.startswith(where) for v in world.versions())
    written = [record.value or b"" for record in world.log.all(world.topics.versions)]
    assert not any(b"nothing" in value or b"nobody" in value for value in written)

    # Given that the newest full weights are gone
    newest: PolicyVersion = world.versions()[-1]
    fsspec.filesystem("s3").rm(newest.full.uri)

    # When a trainer resumes, it writes its checkpoint's weights, and all workers continue
    world.train(world.trainer())
    assert [step.step for step in world.steps()] == [1, 2, 3, 4]

    held = load_latest(world.folder.run().checkpoints).checkpoint
    assert held is not None
    assert weights_files.of_version(where, 4) == held.state.weights
    assert HeldWeights().read(world.versions()[-1]) == held.state.weights
    again = world.trained_again(3, 4)
    assert [step.identical for step in again] == [True, True]
    assert export(world.folder, tmp_path / "out") == 4

    # A server with a cut connection serves its previous version, and never a mixture
    late = weights_engine(world.folder.policy_id, world.folder.policy, world.settings.models)
    wire.cut_after = 60_000
    fsspec.filesystem("s3").clear_instance_cache()  # connections of before are carried whole
    server = world.serve_by(late)
    for _ in range(2):
        server.turn(0.0)
    assert wire.cuts > 0
    assert late.version == -1

    wire.cut_after = None
    for _ in range(50):
        server.turn(0.0)
    assert late.version == 4  # its canary was right
