"""The same batches give the same bits, a split changes nothing, and the learner learns."""

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event
from typing import cast

import numpy as np
import pytest
import torch

from rollcall.schemas.errors import BatchFailed, Refused, Unfit
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.schemas.rules import NoOptions, Rule
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.aggregates import AGGREGATES
from rollcall.trainer.rules.catalogue import LOSSES
from rollcall.trainer.rules.losses import ClipHigher
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.rules.tokens import Costs, Tokens
from rollcall.trainer.weights.tensors import raw_of, tensor_of
from tests.support.changed_config import changed
from tests.support.golden import golden
from tests.support.scored_trajectories import VOCABULARY, sample, scored, sequence, some_samples

CONFIG = LearnerConfig(entropy=0.01, lr=1e-2, steps=20)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in learner.model.named_parameters()}


def test_the_same_batches_give_the_same_bits(model_directory: str) -> None:
    runs = [Learner(model_directory, CONFIG) for _ in range(2)]
    metrics = [[learner.step(some_samples(n)) for n in range(3)] for learner in runs]

    assert metrics[0] == metrics[1]
    assert runs[0].tensors() == runs[1].tensors()
    assert runs[0].canary() == runs[1].canary()


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_split_batch_gives_the_gradient_of_the_whole(model_directory: str, loss: str) -> None:
    aggregate = sorted(AGGREGATES)[sorted(LOSSES).index(loss) % len(AGGREGATES)]
    found = []
    for budget in (30, 16384):
        config = changed(CONFIG, loss=loss, aggregate=aggregate, aggregate_norm=8)
        config = changed(config, micro_batch_tokens=budget, max_grad_norm=1e9)
        learner = Learner(model_directory, config)
        learner.model.double()
        metrics = learner.step(some_samples(0))
        found.append((metrics, gradients(learner)))

    for metrics, pieces in found[:-1]:
        assert metrics["loss"] == pytest.approx(found[-1][0]["loss"], rel=1e-6)
        assert metrics["entropy"] == pytest.approx(found[-1][0]["entropy"], rel=1e-6)
        for name, whole in found[-1][1].items():
            torch.testing.assert_close(pieces[name], whole, rtol=1e-6, atol=1e-9)


def test_logprobs_match_a_plain_forward_pass_without_dropout(model_directory: str) -> None:
    learner = Learner(model_directory, changed(CONFIG, temperature=0.5))
    ids, mask = [1, 2, 3, 4, 5], [0, 1, 0, 1, 1]
    with torch.no_grad():
        log_p_TV = (learner.model(torch.tensor([ids])).logits[0] / 0.5).log_softmax(-1)
    exact = [log_p_TV[t - 1, ids[t]].item() if mask[t] else 0.0 for t in range(5)]
    short = sequence([1, 2], [0, 1], [0.0, exact[1]])
    records = [
        scored("a", 1.0, sequences=(sequence(ids, mask, exact),)),
        scored("b", 0.0, sequences=(short,)),
    ]
    samples = [
        Sample(record, 0, offset, 0, offset, 0, length)
        for offset, (record, length) in enumerate(zip(records, (3, 1), strict=True))
    ]

    metrics = learner.step(samples)

    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["log_ratio_abs_max"] < 1e-5
    assert metrics["clip_fraction"] == 0


def test_metrics_describe_the_batch(model_directory: str) -> None:
    learner = Learner(model_directory, CONFIG, version=3)
    samples = some_samples(1)

    metrics = learner.step(samples, version=7)

    assert learner.version == 7
    assert metrics["staleness_mean"] == metrics["staleness_max"] == 3
    assert metrics["tokens"] == sum(sample.length for sample in samples)
    assert metrics["reward_mean"] == 1
    assert metrics["lr"] == CONFIG.optimiser.lr
    assert 0 < metrics["entropy"] <= np.log(VOCABULARY)
    assert all(isinstance(value, float) for value in metrics.values())


def test_engine_mismatch_is_measured_on_tokens_of_current_weights_only(
    model_directory: str,
) -> None:
    """log-ratio x = lp + 1, for every sampled token was reported as -1."""
    learner = Learner(model_directory, changed(CONFIG, minibatch=3), version=1)
    ids = [[1, 2, 3, 4], [5, 6, 7, 8]]
    rows = [sequence(i, [0, 1, 0, 1], [0, -1, 0, -1], [-1, v, -1, v]) for v, i in enumerate(ids)]
    records = [scored(str(n), 1.0, sequences=(row,)) for n, row in enumerate(rows)]
    samples = [Sample(record, 0, n, 0, float(n), n, 2) for n, record in enumerate(records)]
    with torch.no_grad():
        log_p = learner.model(torch.tensor([ids[1]])).logits[0].log_softmax(-1)
    x = np.array([log_p[0, 6].item(), log_p[2, 8].item()]) + 1

    assert learner.step(samples)["gen_kl"] == pytest.approx((np.exp(x) - x - 1).mean(), rel=1e-4)
    assert "gen_kl" not in learner.step(samples, version=9)


@golden("schedule", "linear", "constant")
def test_the_learning_rate_falls_to_a_tenth_and_stays_there() -> None:
    assert [round(CONFIG.lr_at(done), 6) for done in (0, 5, 18, 19, 40)] == [
        0.01, 0.0075, 0.001, 0.001, 0.001,
    ]  # fmt: skip
    assert changed(CONFIG, schedule="constant").lr_at(40) == CONFIG.optimiser.lr


def test_equal_rewards_change_no_weights(model_directory: str) -> None:
    learner = Learner(model_directory, changed(CONFIG, entropy=0.0))
    before = learner.tensors()

    metrics = learner.step([replace(sample, reward=0.1) for sample in some_samples(2)])

    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert learner.tensors() == before


def test_a_step_without_a_finite_gradient_changes_nothing_and_is_reported(
    model_directory: str,
) -> None:
    learner = Learner(model_directory, changed(CONFIG, loss=f"{__name__}:broken", max_skipped=2))
    before = learner.tensors()

    metrics = learner.step(some_samples(3))
    with pytest.raises(Unfit, match="2 steps in a row"):
        learner.step(some_samples(4))

    assert metrics["skipped"] == 1
    assert learner.state().skipped == 1
    assert learner.tensors() == before


def test_a_batch_that_raises_changes_no_state(model_directory: str) -> None:
    learner, untouched = (Learner(model_directory, CONFIG) for _ in range(2))
    foreign = sample(scored("x", sequences=(sequence([1, 10**6], [0, 1]),)), 99)

    with pytest.raises(BatchFailed, match=r"13 samples .*IndexError"):
        learner.step([*some_samples(3), foreign])

    assert learner.state() == untouched.state()
    assert learner.step(some_samples(4)) == untouched.step(some_samples(4))
    assert learner.tensors() == untouched.tensors()


@pytest.mark.parametrize("early", [True, False])
def test_a_snapshot_keeps_its_state_while_training_continues(
    model_directory: str, early: bool
) -> None:
    learner = Learner(model_directory, LearnerConfig(lr=1e-2))
    learner.step(some_samples(0))
    before, reading, go_on = learner.state(), Event(), Event()

    def read() -> bool:
        with snapshot.reading() as state:
            reading.set()
            assert go_on.wait(10)
            return state == before

    snapshot = learner.snapshot()
    with ThreadPoolExecutor(2) as others:
        if early:  # the learner may compute, but not change, while somebody reads
            was_so = others.submit(read)
            assert reading.wait(10)
            step = others.submit(learner.step, some_samples(1))
            others_wait = not wait([step], timeout=0.3).done
            go_on.set()
            assert was_so.result()
            assert others_wait
            step.result()
        else:
            learner.step(some_samples(1))
            go_on.set()
            assert read()
    assert learner.state() != before
    with pytest.raises(RuntimeError, match="no state any more"), snapshot.reading():
        pass


def test_a_snapshot_is_copied_after_an_interrupted_read(model_directory: str) -> None:
    learner = Learner(model_directory, LearnerConfig(lr=1e-2))
    learner.step(some_samples(0))
    before, snapshot = learner.state(), learner.snapshot()

    def fail() -> None:
        with snapshot.reading() as state:
            assert isinstance(next(iter(state.weights.values())).data, memoryview)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    learner.step(some_samples(1))

    with snapshot.reading() as state:
        assert state == before


def test_a_step_without_samples_is_refused(model_directory: str) -> None:
    with pytest.raises(Refused, match="without samples"):
        Learner(model_directory, CONFIG).step([])


def test_the_canary_has_fixed_ids_and_is_scored_by_current_weights(model_directory: str) -> None:
    learner = Learner(model_directory, CONFIG)
    before = learner.canary()
    learner.step(some_samples(5))
    after = learner.canary()

    assert len(ids_of(before.ids)) == len(logprobs_of(before.logprobs)) + 1
    assert before.ids == after.ids
    assert before.logprobs != after.logprobs
    assert (logprobs_of(after.logprobs) < 0).all()


def test_tied_tensors_are_written_once_sorted_by_name(model_directory: str) -> None:
    tensors = Learner(model_directory, CONFIG).tensors()

    assert list(tensors) == sorted(tensors)
    assert "transformer.wte.weight" in tensors
    assert "lm_head.weight" not in tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_convert_to_bytes_and_back_unchanged(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.arange(6).to(dtype)[: int(np.prod(shape))].reshape(shape)
    there_and_back = tensor_of(raw_of(tensor))

    assert there_and_back.dtype == dtype
    assert torch.equal(there_and_back, tensor)


def test_weights_of_another_model_are_refused(model_directory: str) -> None:
    learner = Learner(model_directory, CONFIG)
    other = dict(learner.tensors()) | {"head": RawTensor("F32", (), b"\0" * 4)}

    with pytest.raises(Unfit, match="'head'"):
        learner.load(replace(learner.state(), weights=other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0; give a number above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"clip_dual": 0.5}, "clip_dual is 0.5; give 0"),
        ({"temperature": 0.0}, "temperature is 0.0; greedy"),
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"advantage": "grpoo"}, "unknown advantage 'grpoo'; did you mean 'grpo'"),
        ({"schedule": "cosine"}, "schedule 'cosine'"),
        ({"filters": ("zero",)}, "filters 'zero'"),
        ({"missing": "wait"}, "missing is 'wait'; use one of drop, train_partial"),
        ({"advantage": "grpo", "group_size": 1}, "group_size is 1"),
        ({"capacity_groups": 4}, "capacity_groups is 4, fewer than the groups_per_step 8"),
        ({"aggregate": "seq_mean_token_sum_norm"}, "aggregate_norm is 0"),
    ],
)
def test_an_invalid_configuration_is_refused_by_name(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig(**change)  # type: ignore[arg-type]


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    assert LearnerConfig.of({"betas": [0.8, 0.9]}).optimiser.betas == (0.8, 0.9)
    with pytest.raises(Refused, match=r"'entropi'.* 'entropy'"):
        LearnerConfig.of({"entropi": 1})


def test_rule_options_may_be_a_table_or_flat_keys() -> None:
    table = LearnerConfig.of({"loss": {"name": "clip_higher", "low": 0.1, "dual": 3}})
    flat = LearnerConfig.of({"clip_low": 0.1, "clip_dual": 3.0})

    assert table.rules.loss.options == flat.rules.loss.options == ClipHigher(0.1, 0.28, 3)
    assert table.digest() != LearnerConfig().digest()
    named = LearnerConfig.of({"loss": {"name": "clip_higher"}})
    assert named.digest() == LearnerConfig().digest()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": {"name": "gspo", "lo": 1}}, "unknown option of loss 'gspo' 'lo'; did you mean"),
        ({"loss": {"name": "gspo", "low": 2}}, "loss 'gspo': low is 2; give a number in"),
        (
            {"loss": {"name": "gspo", "low": 0.1}, "clip_low": 0.1},
            "clip_low and 'low' of",
        ),
        ({"loss": "policy_gradient", "clip_low": 0.1}, "'policy_gradient' has no options, found"),
        ({"loss": {"low": 0.1}}, "a table with `name`"),
        ({"epochs": 0}, "epochs is 0"),
        ({"minibatch": -1}, "minibatch is -1"),
    ],
)
def test_invalid_rule_options_are_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(Refused, match=message):
        LearnerConfig.of(values)


def test_epochs_and_minibatches_stay_within_one_version(model_directory: str) -> None:
    config = changed(CONFIG, epochs=2, minibatch=5)
    learners = [Learner(model_directory, config) for _ in range(2)]

    told = [learner.step(some_samples(0)) for learner in learners]

    assert told[0] == told[1]
    assert learners[0].tensors() == learners[1].tensors()
    assert (learners[0].version, learners[0].steps_done) == (1, 1)
    steps = [m for name, m in learners[0].state().optimiser.items() if name.endswith("/step")]
    assert {tensor_of(step).item() for step in steps} == {2 * 3}
    assert told[0]["trajectories"] == 12


def test_an_update_that_raises_rolls_back_earlier_updates(model_directory: str) -> None:
    config = changed(CONFIG, minibatch=5, loss=f"{__name__}:tired")
    learner, untouched = Learner(model_directory, config), Learner(model_directory, CONFIG)
    TIMES.clear()

    with pytest.raises(BatchFailed, match="tired"):
        learner.step(some_samples(0))

    assert len(TIMES) == 2
    assert learner.state() == untouched.state()


def test_a_rule_that_needs_the_start_of_the_step_gets_it(model_directory: str) -> None:
    """Independent of later updates, and of the splits of the batch."""
    config = changed(CONFIG, minibatch=5, loss=f"{__name__}:LOOKING", micro_batch_tokens=30)
    learner = Learner(model_directory, config)
    SEEN.clear()
    learner.step(some_samples(0))

    first, last = SEEN[0], SEEN[-1]
    assert torch.equal(first.prox_BT, first.lp_BT.detach())
    assert not torch.equal(last.prox_BT[last.mask_BT], last.lp_BT.detach()[last.mask_BT])
    counted = {id(seen.step): len(seen.step.lp_K) for seen in SEEN}
    assert sum(counted.values()) == sum(sample.length for sample in some_samples(0))


def test_the_configuration_digest_follows_its_values() -> None:
    assert LearnerConfig().digest() == LearnerConfig().digest()
    assert LearnerConfig().digest() != LearnerConfig(lr=1e-4).digest()
    assert LearnerConfig().digest() == LearnerConfig(checkpoint_keep_every=1).digest()


def test_the_digest_equals_that_of_the_first_release() -> None:
    """Taken at commit 2be306d; a change makes all existing checkpoints useless."""
    assert LearnerConfig().digest() == (
        "67147e4fe22a6ee786724c24a978b910849c523e6ffa414636b4bbed108abd78"
    )
    assert LearnerConfig(lr=1e-2, steps=20).digest() == (
        "737937c7ba8f41d079b66d0636b00879399a29362be98cc4a68663861dfdbfd7"
    )


def test_a_new_setting_changes_the_digest_only_if_not_default() -> None:
    class Later(LearnerConfig):
        curiosity: float = 0.0

    assert Later().digest() == LearnerConfig().digest()
    assert Later(lr=1e-4).digest() == LearnerConfig(lr=1e-4).digest()
    assert Later(curiosity=0.5).digest() != LearnerConfig().digest()


def test_a_directory_without_a_model_is_refused(tmp_path: object) -> None:
    with pytest.raises(Refused, match="give a local directory"):
        Learner(str(tmp_path), CONFIG)


def test_reinforce_solves_a_bandit(model_directory: str) -> None:
    """Of 12 arms, arm 5 pays 1; 64 pulls a step, 30 steps.

    A policy that learned nothing pulls it with probability 0.08, so 0.9 is never met by chance.
    The seed is fixed: a false alarm needs another generator in torch, and then, as 0 of 40 other
    seeds failed (the lowest came to 0.93), has a chance below 0.08 (95 %).
    """
    learner = Learner(
        model_directory,
        LearnerConfig(loss="policy_gradient", lr=1e-2, steps=30, entropy=0.0, seed=1),
    )
    assert pay_of(learner) < 0.5

    for _ in range(30):
        learner.step(pulls(learner, 64))

    assert pay_of(learner) > 0.9


def pay_of(learner: Learner) -> float:
    with torch.no_grad():
        return learner.model(torch.tensor([[0]])).logits[0, -1].softmax(-1)[5].item()


def pulls(learner: Learner, count: int) -> list[Sample]:
    with torch.no_grad():
        log_p_V = learner.model(torch.tensor([[0]])).logits[0, -1].log_softmax(-1)
    arms = torch.multinomial(log_p_V.exp(), count, replacement=True).tolist()
    version = learner.version
    return [
        sample(
            scored(
                f"{version}-{pull}",
                float(arm == 5),
                sequences=(sequence([0, arm], [0, 1], [0.0, log_p_V[arm].item()], [-1, version]),),
            ),
            pull,
        )
        for pull, arm in enumerate(arms)
    ]


def broken(tokens: Tokens) -> Costs:
    """A user's loss that divides by zero."""
    costs: Costs = LOSSES["policy_gradient"](tokens, NoOptions())
    return replace(costs, cost_BT=costs.cost_BT / 0)


TIMES: list[int] = []
SEEN: list[Tokens] = []


def tired(tokens: Tokens) -> Costs:
    """A user's loss that raises when it is asked a second time."""
    TIMES.append(1)
    if len(TIMES) > 1:
        msg = "tired"
        raise ValueError(msg)
    return cast(Costs, LOSSES["policy_gradient"](tokens, NoOptions()))


def looking(tokens: Tokens, options: NoOptions) -> Costs:
    SEEN.append(tokens)
    return cast(Costs, LOSSES["policy_gradient"](tokens, options))


LOOKING = Rule("looking", "loss", "a test's", looking, needs=frozenset({"prox", "step"}))
