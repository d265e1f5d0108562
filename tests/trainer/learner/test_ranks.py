"""One learner on several processes equals the learner on one."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import Refused, Unavailable, Unfit
from rollcall.schemas.packed import logprobs_of
from rollcall.schemas.rules import RuleChoice
from rollcall.schemas.weights import RawTensor, from_safetensors
from rollcall.trainer.batch.batch_message import read, written
from rollcall.trainer.batch.rows import Batch, BatchRow
from rollcall.trainer.checkpoints.checkpoint import kept, newest_words
from rollcall.trainer.checkpoints.manifest import MANIFEST
from rollcall.trainer.checkpoints.rank_files import directory_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.auxiliary_models import AVERAGE
from rollcall.trainer.learner.ranks import RankMessage, layers_of, own_rows, require_alike
from rollcall.trainer.learner.sharded_learner import ShardedLearner
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights.tensors import tensor_of
from tests.support.rank_jobs import JOBS, SAVED, Exact, place_of
from tests.support.scored_trajectories import make_batch, some_samples
from tests.support.tiers import cases, selected

pytestmark = pytest.mark.timeout(300)
TRAINED = ("2:m2po", "4:ewma", "2:lora", "2:adapter")
OTHERS = ("2:saves", "4:loads", "2:other", "2:elsewhere", "2:dies")


def checkpoint(root: Path, version: int) -> None:
    """As far as its name and its manifest go."""
    directory = directory_of(root, version)
    directory.mkdir(parents=True)
    (directory / MANIFEST).write_bytes(b"{}")


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest,
    model_directory: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The files of all selected jobs; one process forks the ranks of each."""
    out = tmp_path_factory.mktemp("jobs")
    checkpoint(out / "checkpoints0", 3)
    checkpoint(out / "checkpoints1", 4)
    command = [sys.executable, "-m", "tests.support.rank_jobs", model_directory, str(out)]
    command += [*selected(request, "job"), *OTHERS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, timeout=280, env=environment)
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]
    return out


def tensors(path: Path, part: str) -> dict[str, torch.Tensor]:
    raw = from_safetensors(path.with_suffix(f".{part}").read_bytes())
    return {name: tensor_of(tensor) for name, tensor in raw.items()}


@pytest.mark.parametrize("job", cases(TRAINED))
def test_any_number_of_ranks_learns_the_same_as_one(
    jobs: Path, model_directory: str, tmp_path: Path, job: str
) -> None:
    torch.set_num_threads(1)
    theirs, alone = jobs / place_of(job), tmp_path / "alone"

    config, play = JOBS[job.partition(":")[2]]
    play(Exact(model_directory, config), alone)

    ours, said = (orjson.loads(path.read_bytes()) for path in (alone, theirs))
    for step, other in zip(ours["told"], said["told"], strict=True):
        assert other == pytest.approx(step, rel=1e-6, abs=1e-9)
    assert said["version"] == ours["version"] == len(said["told"])
    theirs_said, ours_said = (logprobs_of(bytes.fromhex(each["canary"])) for each in (said, ours))
    assert theirs_said == pytest.approx(ours_said, abs=1e-5)
    for part in ("weights", "optimiser", "rng"):
        one, several = tensors(alone, part), tensors(theirs, part)
        assert several.keys() == one.keys()
        for name, tensor in one.items():
            # Adam divides by a gradient's size: its result for tiny gradients is less certain.
            of_weights = part == "weights" or name.endswith(f"/{AVERAGE}")
            atol = 1e-7 if of_weights else 1e-9
            torch.testing.assert_close(several[name], tensor, rtol=1e-6, atol=atol)


def test_a_checkpoint_of_two_processes_is_resumed_by_one_and_by_four(
    jobs: Path, model_directory: str
) -> None:
    # Given a checkpoint of two ranks, and the step that they took from there
    torch.set_num_threads(1)
    two, four = (jobs / place_of(job) for job in ("2:saves", "4:loads"))
    [directory] = kept(jobs / SAVED).values()
    assert len(list(directory.glob("weights-0000*"))) == 2
    config, go_on = JOBS["loads"]

    # When one process resumes from it, and four others do
    one = jobs / "one"
    go_on(Exact(model_directory, config), one)

    # Then they have loaded the same bits, and take the same step
    for part in ("weights", "optimiser"):
        loaded = [tensors(path.with_name(f"{path.name}-loaded"), part) for path in (one, four)]
        stepped = [tensors(path, part) for path in (two, one, four)]
        for name, tensor in loaded[0].items():
            assert torch.equal(loaded[1][name], tensor)
            assert tensor.dtype == torch.float64 or tensor.ndim == 0
        assert any(not torch.equal(stepped[1][name], loaded[0][name]) for name in loaded[0])
        for name, tensor in stepped[0].items():
            for other in stepped[1:]:
                torch.testing.assert_close(other[name], tensor, rtol=1e-6, atol=1e-9)
    said = [orjson.loads(path.read_bytes()) for path in (two, one, four)]
    for other in said[1:]:
        assert other["version"] == said[0]["version"] == 2
        assert other["told"][0] == pytest.approx(said[0]["told"][0], rel=1e-6, abs=1e-9)


def test_ranks_with_different_settings_all_end_naming_rank_and_field(jobs: Path) -> None:
    place = jobs / place_of("2:other")
    said = [place.with_suffix(f".error{rank}").read_text() for rank in range(2)]

    assert said[0] == said[1]
    assert said[0].startswith("Refused: rank 1 has [learner] lr 0.5, rank 0 has 0.01; all ranks")


def test_ranks_with_different_checkpoints_all_end_naming_both(jobs: Path) -> None:
    place = jobs / place_of("2:elsewhere")
    said = [place.with_suffix(f".error{rank}").read_text() for rank in range(2)]

    assert said[0] == said[1]
    assert "Refused: rank 1 has newest checkpoint v00000004 (" in said[0]
    assert "), rank 0 has v00000003 (" in said[0]


def test_the_newest_checkpoint_is_identified_by_number_and_manifest(tmp_path: Path) -> None:
    assert newest_words(tmp_path / "nowhere") == "none"
    checkpoint(tmp_path, 3)
    first = newest_words(tmp_path)
    checkpoint(tmp_path, 4)
    assert newest_words(tmp_path) != first

    # An unfinished one does not count, and one of the same number is another
    directory_of(tmp_path, 5).mkdir()
    said = newest_words(tmp_path)
    (directory_of(tmp_path, 4) / MANIFEST).write_bytes(b"{ }")
    assert said.startswith("v00000004 (")
    assert newest_words(tmp_path) != said


def test_ranks_do_not_wait_for_a_dead_rank(jobs: Path) -> None:
    said = (jobs / place_of("2:dies")).with_suffix(".error0").read_text()

    assert said.startswith("Unfit: rank 0 of 2: another rank has ended: ")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 5))
def test_every_row_has_one_rank_and_tokens_are_balanced(sizes: list[int], count: int) -> None:
    row = make_batch(some_samples(0)[:1], LearnerConfig()).rows[0]
    rows = tuple(replace(row, token_ids=np.zeros(size, np.int32)) for size in sizes)
    batch = replace(make_batch(some_samples(0), LearnerConfig()), rows=rows)

    owned = [own_rows(batch, rank, count) for rank in range(count)]

    assert [b for own in owned for b in own] == list(range(len(sizes)))
    for own in owned:
        tokens = sum(sizes[b] for b in own)
        assert abs(tokens - sum(sizes) / count) <= max(sizes)


def test_a_batch_reaches_the_other_ranks_unchanged() -> None:
    batch = make_batch(some_samples(3), LearnerConfig())
    seen = [replace(row, seen={"prox": row.behaviour_logprobs * 2}) for row in batch.rows]
    taught = [replace(row, teacher=row.behaviour_logprobs) for row in batch.rows]

    for rows in (batch.rows, seen, taught):
        given_ = replace(batch, rows=tuple(rows), metrics={"turns_left_out": 3.0})
        there = RankMessage.of(RankMessage({"call": "step"}, written(given_)).packed())
        assert_same(read(there.tensors), given_)


def assert_same(batch: Batch, other: Batch) -> None:
    assert batch.metrics == other.metrics
    for key in (each.name for each in fields(Batch) if each.name not in ("rows", "told")):
        assert np.array_equal(getattr(batch, key), getattr(other, key))
    for row, like in zip(batch.rows, other.rows, strict=True):
        for key in (each.name for each in fields(BatchRow)):
            ours, theirs = getattr(row, key), getattr(like, key)
            if key == "seen":
                assert ours.keys() == theirs.keys()
                assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
            elif isinstance(theirs, np.ndarray):
                assert np.array_equal(ours, theirs)
                assert ours.dtype == theirs.dtype
            else:
                assert (type(ours), ours) == (type(theirs), theirs)


def test_a_row_value_that_cannot_be_sent_to_ranks_raises() -> None:
    batch = make_batch(some_samples(0), LearnerConfig())
    odd = replace(batch.rows[0], reward="much")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="reward of a batch's row is a str"):
        written(replace(batch, rows=(odd,)))


class Two:
    """Two ranks in one, of which the other sends configured values."""

    rank, count = 0, 2

    def __init__(self, other: dict[str, str]) -> None:
        self.other = orjson.dumps(other)

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message, self.other]

    def broadcast(self, message: bytes = b"") -> bytes:
        return message

    def spread(self, model: torch.nn.Module) -> None:
        """All of it stays."""


def test_ranks_with_different_starting_weights_are_refused() -> None:
    require_alike(Two({"starting weights": "ab"}), {"starting weights": "ab"})

    with pytest.raises(Refused, match="rank 1 has starting weights cd, rank 0 has ab; all ranks"):
        require_alike(Two({"starting weights": "cd"}), {"starting weights": "ab"})
    with pytest.raises(Refused, match="rank 1 has world size 3, rank 0 has None"):
        require_alike(Two({"world size": "3"}), {})


def test_packed_messages_between_ranks_are_read_back_unchanged() -> None:
    words = RankMessage({"call": "load", "step": 3}, {"a": RawTensor("F32", (0, 2), b"")})

    assert RankMessage.of(words.packed()) == words


def test_layers_of_a_model_are_found_once(model_directory: str) -> None:
    model = Learner(model_directory, LearnerConfig()).model

    assert layers_of(model) == list(model.transformer.h)


@pytest.mark.parametrize("ranks", [0, -1, 1.5, float("nan")])
def test_an_invalid_number_of_ranks_is_refused(ranks: float) -> None:
    with pytest.raises(Refused, match=f"ranks is {ranks}; give 1, or as many as there are devices"):
        LearnerConfig(ranks=ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"advantage": "opob"}, "ranks 2 does not go with advantage 'opob', which takes the grad"),
        (
            {"stream": True, "max_staleness": 0, "advantage": "rloo"},
            "ranks 2 does not go with stream: groups are too few",
        ),
    ],
)
def test_settings_unsupported_on_several_ranks_are_refused(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig.of({"ranks": 2, **values})


def test_the_number_of_ranks_does_not_change_the_digest() -> None:
    assert LearnerConfig(ranks=4).digest() == LearnerConfig().digest()


class Alone:
    """A line to no other rank."""

    rank, count = 0, 1

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message]

    def broadcast(self, message: bytes = b"") -> bytes:
        return message

    def spread(self, model: torch.nn.Module) -> None:
        """All of it stays here."""


@pytest.mark.parametrize(
    "advantage", ["batch_normalised", RuleChoice("reinforce_pp", (("beta", 0.1),))]
)
def test_a_rank_that_cannot_read_past_weights_ends(
    model_directory: str, advantage: str | RuleChoice
) -> None:
    def away(version: int) -> None:
        msg = "the store does not answer"
        raise Unavailable(msg)

    config = LearnerConfig(old_logprobs="snapshot", advantage=advantage, kl="k3")
    learner = ShardedLearner(model_directory, config, Alone(), past=away)
    with pytest.raises(Unfit, match="rank 0 of 1: the store does not answer; the others wait"):
        learner.step(some_samples(0))
