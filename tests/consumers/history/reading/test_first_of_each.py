from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.history.reading.selection import FirstOfEach

KEYS = st.tuples(st.text("ab1"), st.integers(0, 20))


@given(st.lists(KEYS))
def test_the_first_record_of_each_key_counts(keys: list[tuple[str, int]]) -> None:
    firsts = FirstOfEach[tuple[str, int]](tuple)

    assert [key for key in keys if firsts.add(key)] == list(dict.fromkeys(keys))
    assert all(key in firsts for key in keys)


def test_key_parts_are_kept_separate() -> None:
    firsts = FirstOfEach[tuple[object, ...]](tuple)
    firsts.add(("a", 11))

    assert ("a1", 1) not in firsts
