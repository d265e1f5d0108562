"""Weight files that are needed are kept, and all others are removed in the end."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.trainer.weights.weights_needs import (
    NEWEST,
    YOUNG_S,
    KeptFile,
    WeightsNeeds,
    besides,
    holders,
    may_go,
)

MINUTE_MS = 60_000
VERSIONS = st.integers(0, 12)


def full(version: int) -> KeptFile:
    return KeptFile(f"v{version:08d}-f.safetensors", version, -1, 1000)


def delta(version: int, base: int) -> KeptFile:
    return KeptFile(f"v{version:08d}-on-v{base:08d}-d.delta", version, base, 10)


@st.composite
def folders(draw: st.DrawFn) -> list[KeptFile]:
    """Arbitrary folders: several files of a version, and chains without a base."""
    fulls = draw(st.sets(VERSIONS))
    deltas = draw(st.sets(st.tuples(VERSIONS, VERSIONS), max_size=20))
    return [*map(full, fulls), *(delta(*each) for each in deltas)]


@st.composite
def every_need(draw: st.DrawFn) -> WeightsNeeds:
    counts = st.dictionaries(VERSIONS, st.integers(1, 5), max_size=2)
    ages = st.dictionaries(VERSIONS, st.integers(0, 20 * MINUTE_MS))
    return WeightsNeeds(
        20 * MINUTE_MS,
        draw(ages),
        draw(st.sets(VERSIONS, max_size=2)),
        draw(counts),
        draw(counts),
        draw(st.sets(VERSIONS, max_size=2)),
        draw(counts),
        draw(counts),
    )


def wanted_by_hand(needs: WeightsNeeds) -> set[int]:
    """The needed versions, computed in another way."""
    newest = max(needs.announced_ms, default=-1)
    wanted = {
        *needs.checkpoints,
        *needs.open,
        *needs.buffered,
        *needs.awaited,
        *needs.replayed,
        *needs.requested,
    }
    wanted |= {v for v, at in needs.announced_ms.items() if needs.now_ms < at + 1000 * YOUNG_S}
    return wanted | {*range(newest + 1, 14)} | {newest}


def can_be_had(version: int, files: set[KeptFile], seen: frozenset[int] = frozenset()) -> bool:
    """Whether a chain of deltas leads to it from full weights."""
    return version not in seen and any(
        file.base < 0 or can_be_had(file.base, files, seen | {version})
        for file in files
        if file.version == version
    )


@given(folders(), every_need())
def test_needed_weight_files_are_never_removed(files: list[KeptFile], needs: WeightsNeeds) -> None:
    gone = may_go(files, needs)

    left = set(files) - set(gone)
    for version in wanted_by_hand(needs):
        assert can_be_had(version, left) == can_be_had(version, set(files))
        assert not any(file.version == version for file in gone)
    # And the result is stable: files that are left do not go next time
    assert may_go(sorted(left, key=lambda file: file.name), needs) == ()
    assert [file.version for file in gone] == sorted(file.version for file in gone)


@given(folders(), every_need())
def test_every_kept_file_has_a_reason_and_removable_files_have_no_reason(
    files: list[KeptFile], needs: WeightsNeeds
) -> None:
    found = holders(files, needs)

    gone = {file.version for file in may_go(files, needs)}
    assert {version for version, reasons in found.items() if not reasons} == gone


@given(folders(), every_need())
def test_all_unneeded_files_are_removed_eventually(
    files: list[KeptFile], needs: WeightsNeeds
) -> None:
    # Given that all has ended, newer versions were announced in full, and time has passed
    newer = {14: needs.now_ms, 15: needs.now_ms}
    later = needs.now_ms + int(1000 * YOUNG_S)
    ended = WeightsNeeds(later, {**needs.announced_ms, **newer})
    files = [*files, full(14), full(15)]

    assert set(files) - set(may_go(files, ended)) == {full(14), full(15)}


def test_reasons_along_a_delta_chain_match_a_worked_example() -> None:
    files = [full(0), full(1), delta(2, 1), delta(3, 2), full(4), delta(5, 4), full(6), full(7)]
    announced = {version: version * 5 * MINUTE_MS for version in range(7)}
    needs = WeightsNeeds(32 * MINUTE_MS, announced, {4}, {3: 2}, {3: 1}, {4})

    assert NEWEST == 2
    assert holders(files, needs) == {
        0: (),
        1: ("base of 2",),
        2: ("base of 3",),
        3: ("open 2", "buffered 1"),
        4: ("checkpoint", "awaited", "base of 5"),
        5: ("newest", "young"),
        6: ("newest", "young"),
        7: ("not announced",),
    }
    assert may_go(files, needs) == (full(0),)
    assert besides(files, [5, 6]) == (full(0), full(1), delta(2, 1), delta(3, 2), full(7))
