import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollcall.inference.sampling import draw, uniforms

DRAWS = 20_000
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -4.0])


def sample(
    rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> tuple[list[int], list[float]]:
    seeds = np.arange(rows, dtype=np.uint64)
    noise = torch.from_numpy(uniforms(seeds, np.zeros_like(seeds)))
    return draw(
        LOGITS.expand(rows, -1),
        torch.full((rows,), temperature),
        torch.full((rows,), top_k),
        torch.full((rows,), top_p),
        noise,
    )


def expected(temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """The distribution by its definition, token by token."""
    left = (LOGITS / temperature).softmax(-1)
    order = left.argsort(descending=True).tolist()
    order = order[: top_k or None]
    total = sum(left[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= top_p:
            break
        kept.append(token)
        mass += left[token] / total
    inside = torch.zeros_like(left)
    inside[kept] = left[kept]
    return inside / inside.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 3, 1.0), (1.0, 0, 0.8), (1.3, 5, 0.9), (1.0, 1, 0.01)],
)
def test_tokens_are_drawn_from_the_reported_distribution(
    temperature: float, top_k: int, top_p: float
) -> None:
    """Seeds are fixed, so this passes or fails for good. Chi-square has at most 7 degrees of
    freedom; over other seeds its chance of exceeding 45 is below 2e-7 per case.
    """
    distribution = expected(temperature, top_k, top_p)

    tokens, logprobs = sample(DRAWS, temperature, top_k, top_p)

    counts = np.bincount(tokens, minlength=len(LOGITS))
    inside = distribution.numpy() > 0
    wanted = DRAWS * distribution.numpy()[inside]
    assert counts[~inside].sum() == 0
    assert ((counts[inside] - wanted) ** 2 / wanted).sum() < 45
    torch.testing.assert_close(torch.tensor(logprobs), distribution[tokens].log())


def test_temperature_zero_picks_the_likeliest_token_with_its_plain_logprob() -> None:
    tokens, logprobs = sample(3, temperature=0.0, top_k=1, top_p=0.1)

    assert tokens == [0, 0, 0]
    assert logprobs == pytest.approx([LOGITS.log_softmax(-1)[0].item()] * 3)


def test_each_row_is_sampled_with_its_own_options() -> None:
    count = 400
    temperature = torch.tensor([0.0, 1.0] * (count // 2))
    top_k = torch.tensor([0, 0, 0, 2] * (count // 4))
    noise = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    tokens, _ = draw(LOGITS.expand(count, -1), temperature, top_k, torch.ones(count), noise)

    assert set(tokens[::2]) == {0}
    assert len(set(tokens[1::4])) > 2
    assert set(tokens[3::4]) == {0, 1}


@given(seed=st.integers(0, 2**63 - 1), count=st.integers(0, 2**20))
def test_the_noise_depends_on_seed_and_count_only(seed: int, count: int) -> None:
    alone = uniforms(np.array([seed], np.uint64), np.array([count], np.uint64))
    among = uniforms(np.array([7, seed], np.uint64), np.array([3, count], np.uint64))

    assert alone[0] == among[1]
    assert 0 <= alone[0] < 1


def test_neighbouring_seeds_and_counts_give_unrelated_noise() -> None:
    """The correlation of 20,000 pairs exceeds 0.05 with a chance of 2e-12 over other seeds."""
    numbers = np.arange(DRAWS, dtype=np.uint64)
    of_seeds, of_counts = uniforms(numbers, 0 * numbers), uniforms(0 * numbers, numbers)

    for noise in (of_seeds, of_counts):
        assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.05
        assert noise.mean() == pytest.approx(0.5, abs=0.02)
    assert abs(np.corrcoef(of_seeds, of_counts)[0, 1]) < 0.05


def test_the_largest_noise_picks_a_possible_token() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])

    tokens, _ = draw(
        logits,
        torch.ones(1),
        torch.zeros(1, dtype=torch.long),
        torch.ones(1),
        torch.tensor([1 - 2.0**-53], dtype=torch.float64),
    )

    assert tokens == [1]
