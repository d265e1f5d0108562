"""The rules of retries, without HTTP: which request is which call, and the answers it gets."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollcall.consumers.environments.gateway.line import GatewayLine, OpenCalls, TooManyOpen
from rollcall.schemas.agent_requests import AgentRequest, Choice, ErrorReply, ModelReply
from rollcall.schemas.messages import Message

QUESTION = AgentRequest("model", (Message("user", "how much?"),))
OTHER = AgentRequest("model", (Message("user", "how many?"),))
RESET = ConnectionResetError("reset by peer")
Test = Callable[[GatewayLine], Awaitable[None]]


def on_a_line(test: Test, open_calls: OpenCalls | None = None) -> None:
    async def run() -> None:
        await test(a_line(open_calls or OpenCalls()))

    asyncio.run(run())


def a_line(open_calls: OpenCalls) -> GatewayLine:
    return GatewayLine(
        "http://127.0.0.1:1/r/key", "key", ["policy"], {}, open_calls, lambda _: None
    )


def said(text: str, request: AgentRequest = QUESTION) -> ModelReply:
    return ModelReply(request.d, (Choice(text),))


def test_identical_concurrent_requests_are_two_calls_answered_in_order() -> None:
    async def test(line: GatewayLine) -> None:
        first, second = line.attach(QUESTION), line.attach(QUESTION)

        assert line.asked() == [QUESTION, QUESTION]
        line.tell(said("one"))
        line.tell(said("two"))
        assert [await first.reply(), await second.reply()] == [said("one"), said("two")]

    on_a_line(test)


def test_a_disconnected_client_finds_its_open_call_again() -> None:
    async def test(line: GatewayLine) -> None:
        line.attach(QUESTION).lost(None)
        assert line.asked() == [QUESTION]

        again = line.attach(QUESTION)

        assert line.asked() == [QUESTION]
        line.tell(said("once"))
        assert await again.reply() == said("once")

    on_a_line(test)


def test_an_undelivered_answer_waits_for_the_client_to_come_back() -> None:
    async def test(line: GatewayLine) -> None:
        line.attach(QUESTION).lost(None)
        line.tell(said("once"))

        assert await line.attach(QUESTION).reply() == said("once")
        assert line.asked() == []

    on_a_line(test)


def test_a_retry_joins_the_open_call_of_a_possibly_live_client() -> None:
    async def test(line: GatewayLine) -> None:
        slow, other = line.attach(QUESTION), line.attach(QUESTION)
        retries = [line.attach(QUESTION, retry=True) for _ in range(2)]

        assert {retry.call for retry in retries} == {slow.call, other.call}
        assert line.asked() == [QUESTION, QUESTION]

    on_a_line(test)


def test_a_cut_answer_is_repeated_and_an_arrived_one_is_not() -> None:
    async def test(line: GatewayLine) -> None:
        cut, whole = line.attach(QUESTION), line.attach(OTHER)
        line.tell(said("cut"))
        line.tell(said("whole", OTHER))
        cut.written()
        whole.written()
        cut.lost(RESET)
        whole.lost(None)

        assert await line.attach(QUESTION).reply() == said("cut")
        line.attach(OTHER)
        assert line.asked() == [OTHER]

    on_a_line(test)


def test_two_identical_calls_both_cut_are_each_answered_again_once() -> None:
    async def test(line: GatewayLine) -> None:
        votes = [line.attach(QUESTION) for _ in range(2)]
        line.tell(said("one"))
        line.tell(said("two"))
        for vote in votes:
            vote.lost(RESET)

        again = [line.attach(QUESTION) for _ in range(2)]

        assert [await vote.reply() for vote in again] == [said("one"), said("two")]
        line.attach(QUESTION)
        assert line.asked() == [QUESTION]

    on_a_line(test)


def test_an_answer_still_being_written_is_not_given_to_another_client() -> None:
    async def test(line: GatewayLine) -> None:
        line.attach(QUESTION)
        line.tell(said("one"))

        line.attach(QUESTION)

        assert line.asked() == [QUESTION]

    on_a_line(test)


@pytest.mark.parametrize(("between", "again"), [(False, True), (True, False)])
def test_a_retry_gets_an_arrived_answer_only_if_it_is_the_latest(
    between: bool, again: bool
) -> None:
    async def test(line: GatewayLine) -> None:
        line.attach(QUESTION).written()
        line.tell(said("once"))
        if between:
            line.attach(OTHER).written()
            line.tell(said("other", OTHER))

        retry = line.attach(QUESTION, retry=True)

        assert (line.asked() == []) is again
        assert (retry.call.reply == said("once")) is again

    on_a_line(test)


def test_a_failed_retry_does_not_mark_an_arrived_answer_as_lost() -> None:
    async def test(line: GatewayLine) -> None:
        early = line.attach(QUESTION)
        line.attach(QUESTION, retry=True).written()
        line.tell(said("once"))
        early.lost(RESET)

        line.attach(QUESTION)

        assert line.asked() == [QUESTION]

    on_a_line(test)


@pytest.mark.parametrize("answered", [True, False])
def test_requests_with_one_idempotency_key_are_one_call(answered: bool) -> None:
    async def test(line: GatewayLine) -> None:
        first = line.attach(QUESTION, key="k")
        if answered:
            line.tell(said("once"))
            first.written()
            line.attach(OTHER)
            line.tell(said("other", OTHER))

        assert line.attach(QUESTION, key="k").call is first.call
        assert line.attach(QUESTION, key="another").call is not first.call
        assert line.attach(QUESTION).call is not first.call
        assert line.attach(AgentRequest("step", text="ls"), key="k").call is not first.call

    on_a_line(test)


@pytest.mark.parametrize(("status", "asked"), [(429, True), (503, True), (404, False)])
def test_a_retry_repeats_a_call_that_failed_temporarily(status: int, asked: bool) -> None:
    async def test(line: GatewayLine) -> None:
        line.attach(QUESTION).written()
        line.tell(ErrorReply(QUESTION.d, status, "code", "words"))

        line.attach(QUESTION, retry=True)

        assert bool(line.asked()) is asked

    on_a_line(test)


def test_a_reply_without_a_waiting_call_is_refused() -> None:
    async def test(line: GatewayLine) -> None:
        line.attach(QUESTION)

        with pytest.raises(KeyError):
            line.tell(said("what?", OTHER))

    on_a_line(test)


def test_a_wait_ends_with_a_request_a_closed_line_or_a_timeout() -> None:
    async def test(line: GatewayLine) -> None:
        await line.wait(0.001)
        assert line.asked() == []
        waits = asyncio.create_task(line.wait(None))
        await asyncio.sleep(0)
        line.attach(QUESTION)
        await waits
        line.asked()
        waits = asyncio.create_task(line.wait(None))
        await asyncio.sleep(0)
        await line.close()
        await waits

    on_a_line(test)


def test_a_request_before_the_wait_ends_it_at_once() -> None:
    async def test(line: GatewayLine) -> None:
        line.asked()
        line.attach(QUESTION)

        await asyncio.wait_for(line.wait(None), 5)
        assert line.waiting() == 1

    on_a_line(test)


def test_a_closed_line_answers_no_client_and_releases_its_open_calls() -> None:
    open_calls = OpenCalls()

    async def test(line: GatewayLine) -> None:
        client = line.attach(QUESTION)
        await line.close()
        await line.close()

        assert await client.reply() is None
        assert line.asked() == []
        assert open_calls.count == 0

    on_a_line(test, open_calls)


def test_open_calls_are_bounded_for_a_session_and_a_worker() -> None:
    open_calls = OpenCalls(most=3, most_of_session=2)

    async def test(line: GatewayLine) -> None:
        for _ in range(2):
            line.attach(QUESTION)
        with pytest.raises(TooManyOpen, match="2 requests of this agent"):
            line.attach(QUESTION)
        line.attach(QUESTION, retry=True)
        another = a_line(open_calls)
        another.attach(QUESTION)
        with pytest.raises(TooManyOpen, match="3 requests of this worker"):
            another.attach(QUESTION)

        line.tell(said("one"))

        another.attach(QUESTION)

    on_a_line(test, open_calls)


def test_a_client_that_times_out_still_gets_its_answer_later() -> None:
    async def test(line: GatewayLine) -> None:
        client = line.attach(QUESTION)
        assert not await client.told_within(0.001)
        line.tell(said("late"))
        assert await client.told_within(0.001)
        assert await client.reply() == said("late")

    on_a_line(test)


def test_a_wake_before_the_wait_also_ends_it() -> None:
    async def test(line: GatewayLine) -> None:
        line.wake()
        await asyncio.wait_for(line.wait(None), 5)
        assert line.asked() == []

        waiting = asyncio.create_task(line.wait(None))
        await asyncio.sleep(0)
        assert not waiting.done()
        line.wake()

        await asyncio.wait_for(waiting, 5)

    on_a_line(test)
