"""The cache is bounded by the memory of its values."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.answer_cache import AnswerCache, size_of
from rollcall.schemas.messages import EnvironmentStepped, ModelAnswered


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 900), st.sampled_from([None, "a", "b"])),
        max_size=60,
    ),
    st.integers(0, 9),
)
def test_the_cache_never_exceeds_its_bound_and_knows_its_size(
    kept_sizes: list[tuple[int, int, str | None]], dropped: int
) -> None:
    kept: AnswerCache[bytes] = AnswerCache(3000, 1500)

    for key, size, of in kept_sizes:
        kept.keep(key, bytes(size), of)

    held = [value for key in range(10) if (value := kept.get(key)) is not None]
    assert kept.size_bytes == sum(map(size_of, held)) <= 3000
    assert len(kept) == len(held)
    if kept_sizes:
        last, size, _ = kept_sizes[-1]
        assert kept.get(last) == bytes(size)
    kept.drop(dropped)
    assert kept.get(dropped) is None


def test_the_least_recently_used_value_is_evicted_first() -> None:
    kept: AnswerCache[bytes] = AnswerCache(3 * size_of(bytes(100)))
    for key in "abc":
        kept.keep(key, bytes(100))

    kept.get("a")
    kept.keep("d", bytes(100))

    assert [kept.get(key) is not None for key in "abcd"] == [True, False, True, True]


def test_only_the_last_answer_of_a_session_is_kept_fully() -> None:
    kept: AnswerCache[bytes] = AnswerCache(50_000, 3 * size_of(bytes(100)))
    for number in range(50):
        for name in ("one session", "another"):
            kept.keep((name, number), bytes(100), name)
    kept.keep("of nothing", bytes(100))

    held = [key for key in range(50) for name in ("one session",) if kept.get((name, key))]
    assert held == [48, 49]
    assert len(kept) == 2 + 3 + 1
    assert kept.get(("another", 49)) is not None


def test_a_superseded_answer_that_is_requested_stays_longer() -> None:
    kept: AnswerCache[bytes] = AnswerCache(50_000, 2 * size_of(bytes(100)))
    for number in range(3):
        kept.keep(number, bytes(100), "a session")

    kept.get(0)
    kept.keep(3, bytes(100), "a session")

    assert [kept.get(number) is not None for number in range(4)] == [True, False, True, True]


def test_a_value_above_the_bound_is_dropped_with_its_predecessor() -> None:
    kept: AnswerCache[bytes] = AnswerCache(1000)
    kept.keep("a", b"old")

    kept.keep("a", bytes(1000))

    assert (kept.get("a"), len(kept), kept.size_bytes) == (None, 0, 0)


def test_a_dropped_value_is_removed() -> None:
    kept: AnswerCache[bytes] = AnswerCache()
    kept.keep("a", b"old")

    kept.drop("a")
    kept.drop("a")

    assert (kept.get("a"), kept.size_bytes) == (None, 0)


def answer(tokens: int) -> ModelAnswered:
    packed = bytes(4 * tokens)
    parts = [bytes(bytearray(packed)) for _ in range(4)]
    return ModelAnswered("ab" * tokens, *parts, "stop", "p", 0)


def test_the_bound_holds_for_long_and_short_answers() -> None:
    for tokens, most_bytes, count in ((2048, 8 << 20, 500), (4, 1 << 20, 5000)):
        tracemalloc.start()
        kept: AnswerCache[ModelAnswered] = AnswerCache(most_bytes)
        for number in range(count):
            kept.keep(number.to_bytes(16, "big"), answer(tokens))
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()

        assert 0.5 * most_bytes < used < 1.25 * most_bytes


def test_the_size_of_an_observation_includes_its_text() -> None:
    assert size_of(EnvironmentStepped("x" * 5000)) > 5000 > size_of(EnvironmentStepped(""))
