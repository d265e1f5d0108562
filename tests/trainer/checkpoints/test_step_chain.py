"""The steps of a run as a chain: of two successors of one step, the first in the log counts."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from rollcall.trainer.checkpoints.step_chain import StepChain, step_id


@dataclass(frozen=True)
class Step:
    version: int
    writer: str
    predecessor: str


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=40))
def test_concurrent_writers_yield_one_chain_of_counted_steps(
    turns: list[tuple[str, bool, bool]],
) -> None:
    """Each writer continues from its last read step, or from its own, and may read on."""
    log: list[Step] = []
    seen = {writer: (0, "") for writer in "abc"}
    for writer, reads, again in turns:
        chain = StepChain()
        counts = [each for each in log if chain.take(each)]
        if reads and counts:
            seen[writer] = max(each.version for each in counts), chain.head
        version, head = seen[writer]
        step = Step(version + 1, writer, head)
        log += [step, step] if again else [step]
        seen[writer] = step.version, step_id(step)

    chain = StepChain()
    line = [each for each in log if chain.take(each)]
    once = list(dict.fromkeys(line))
    assert [each.predecessor for each in once] == ["", *map(step_id, once)][:-1]
    assert len({each.version for each in once}) == len(once)
    assert {step_id(each) for each in log} == {step_id(each) for each in once} | chain.lost


def test_a_step_counts_after_a_missing_record_not_after_a_rejected_one() -> None:
    chain = StepChain()
    assert chain.take(Step(1, "a", ""))
    assert not chain.take(Step(1, "b", ""))
    assert not chain.take(Step(2, "b", "1/b"))
    assert chain.take(Step(3, "a", "2/a")), "the record of 2/a is lost"
    assert not chain.take(Step(4, "c", "1/a"))
    assert chain.after(1) == ["3/a"]


def test_steps_of_earlier_releases_count_once_per_version() -> None:
    chain = StepChain()
    old = [Step(1, "", ""), Step(2, "", ""), Step(2, "", ""), Step(4, "", "")]
    assert [chain.take(each) for each in old] == [True] * 4
    assert chain.take(Step(5, "a", "4/"))
    assert not chain.take(Step(5, "", ""))
