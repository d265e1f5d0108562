"""Ids depend only on their place, and stay the same after every upgrade."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.ids import call_seed, command_id, digest, request_id
from tests.support.avro_messages import FEW

PLACES = st.tuples(
    st.text(max_size=4), st.integers(-1, 20), st.integers(-1, 20), st.integers(0, 20)
)
PARTS = st.lists(st.text(alphabet="a1:\0", max_size=4), max_size=4)


@given(PLACES, PLACES)
@FEW
def test_commands_share_an_id_only_if_they_share_their_place(
    one: tuple[str, int, int, int], other: tuple[str, int, int, int]
) -> None:
    assert (command_id(*one) == command_id(*other)) == (one == other)


@given(st.text(alphabet="r\x001", max_size=6), st.text(alphabet="r\x001", max_size=6))
@FEW
def test_a_crafted_rollout_id_cannot_collide_with_another_place(one: str, other: str) -> None:
    assert (command_id(one, 1, 1, 1) == command_id(other, 1, 1, 1)) == (one == other)


@given(PARTS, PARTS)
@FEW
def test_digests_are_equal_only_for_equal_parts(one: list[str], other: list[str]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_a_digest_depends_on_the_text_of_its_parts_and_size() -> None:
    assert digest(1, "x") == digest("1", "x")
    assert len(digest("x")) == 16
    assert len(digest("x", size_bytes=8)) == 8


@given(st.text(max_size=4), st.integers(1, 5), st.integers(0, 100))
@FEW
def test_a_seed_fits_a_signed_long(seed_key: str, attempt: int, position: int) -> None:
    assert 0 <= call_seed(seed_key, attempt, position) < 2**63


def test_seeds_differ_between_attempts_positions_and_rollouts() -> None:
    seeds = {call_seed(key, a, p) for key in ("r", "s") for a in (1, 2) for p in range(20)}

    assert len(seeds) == 2 * 2 * 20


def test_a_seed_does_not_derive_from_the_command_id() -> None:
    assert call_seed("r", 1, 0) != int.from_bytes(command_id("r", 1, 0, 0)[:8], "big") >> 1


def test_request_ids_differ_between_runs_draws_and_members() -> None:
    ids = {request_id(run, draw, member) for run in "ab" for draw in (0, 1) for member in (0, 1)}

    assert len(ids) == 8
    assert request_id("a", 1, 11) != request_id("a", 11, 1)


def test_ids_already_on_the_log_never_change() -> None:
    assert command_id("r", 1, 0, 0).hex() == "338398882ddfd9b81e5afd31289a6f0a"
    assert call_seed("r", 1, 0) == 8595143758598399438
    assert request_id("run", 3, 1) == "2532c47bf4585be24c51103c407ae9da"
    assert digest("a", "b").hex() == "c04e17957d4ca3123b3afdaab02e4023"
