"""The rules of retries, without HTTP: which request is which call, and the answers it gets."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint, OpenCalls, TooManyOpen
from rollcall.schemas.agent_requests import AgentRequest, Choice, ErrorReply, ModelReply
from rollcall.schemas.messages import Message

QUESTION = AgentRequest("model", (Message("user", "how much?"),))
OTHER = AgentRequest("model", (Message("user", "how many?"),))
RESET = ConnectionResetError("reset by peer")
Test = Callable[[GatewayEndpoint], Awaitable[None]]


def on_an_endpoint(test: Test, open_calls: OpenCalls | None = None) -> None:
    async def run() -> None:
        await test(an_endpoint(open_calls or OpenCalls()))

    asyncio.run(run())


def an_endpoint(open_calls: OpenCalls) -> GatewayEndpoint:
    return GatewayEndpoint(
        "http://127.0.0.1:1/r/key", "key", ["policy"], {}, open_calls, lambda _: None
    )


def said(text: str, request: AgentRequest = QUESTION) -> ModelReply:
    return ModelReply(request.d, (Choice(text),))


def test_identical_concurrent_requests_are_two_calls_answered_in_order() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        first, second = endpoint.attach(QUESTION), endpoint.attach(QUESTION)

        assert endpoint.open_requests() == [QUESTION, QUESTION]
        endpoint.answer(said("one"))
        endpoint.answer(said("two"))
        assert [await first.reply(), await second.reply()] == [said("one"), said("two")]

    on_an_endpoint(test)


def test_a_disconnected_client_finds_its_open_call_again() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.attach(QUESTION).connection_lost(None)
        assert endpoint.open_requests() == [QUESTION]

        again = endpoint.attach(QUESTION)

        assert endpoint.open_requests() == [QUESTION]
        endpoint.answer(said("once"))
        assert await again.reply() == said("once")

    on_an_endpoint(test)


def test_an_undelivered_answer_waits_for_the_client_to_come_back() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.attach(QUESTION).connection_lost(None)
        endpoint.answer(said("once"))

        assert await endpoint.attach(QUESTION).reply() == said("once")
        assert endpoint.open_requests() == []

    on_an_endpoint(test)


def test_a_retry_joins_the_open_call_of_a_possibly_live_client() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        slow, other = endpoint.attach(QUESTION), endpoint.attach(QUESTION)
        retries = [endpoint.attach(QUESTION, retry=True) for _ in range(2)]

        assert {retry.call for retry in retries} == {slow.call, other.call}
        assert endpoint.open_requests() == [QUESTION, QUESTION]

    on_an_endpoint(test)


def test_a_cut_answer_is_repeated_and_an_arrived_one_is_not() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        cut, whole = endpoint.attach(QUESTION), endpoint.attach(OTHER)
        endpoint.answer(said("cut"))
        endpoint.answer(said("whole", OTHER))
        cut.reply_written()
        whole.reply_written()
        cut.connection_lost(RESET)
        whole.connection_lost(None)

        assert await endpoint.attach(QUESTION).reply() == said("cut")
        endpoint.attach(OTHER)
        assert endpoint.open_requests() == [OTHER]

    on_an_endpoint(test)


def test_two_identical_calls_both_cut_are_each_answered_again_once() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        votes = [endpoint.attach(QUESTION) for _ in range(2)]
        endpoint.answer(said("one"))
        endpoint.answer(said("two"))
        for vote in votes:
            vote.connection_lost(RESET)

        again = [endpoint.attach(QUESTION) for _ in range(2)]

        assert [await vote.reply() for vote in again] == [said("one"), said("two")]
        endpoint.attach(QUESTION)
        assert endpoint.open_requests() == [QUESTION]

    on_an_endpoint(test)


def test_an_answer_still_being_written_is_not_given_to_another_client() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.attach(QUESTION)
        endpoint.answer(said("one"))

        endpoint.attach(QUESTION)

        assert endpoint.open_requests() == [QUESTION]

    on_an_endpoint(test)


@pytest.mark.parametrize(("between", "again"), [(False, True), (True, False)])
def test_a_retry_gets_an_arrived_answer_only_if_it_is_the_latest(
    between: bool, again: bool
) -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.attach(QUESTION).reply_written()
        endpoint.answer(said("once"))
        if between:
            endpoint.attach(OTHER).reply_written()
            endpoint.answer(said("other", OTHER))

        retry = endpoint.attach(QUESTION, retry=True)

        assert (endpoint.open_requests() == []) is again
        assert (retry.call.reply == said("once")) is again

    on_an_endpoint(test)


def test_a_failed_retry_does_not_mark_an_arrived_answer_as_lost() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        early = endpoint.attach(QUESTION)
        endpoint.attach(QUESTION, retry=True).reply_written()
        endpoint.answer(said("once"))
        early.connection_lost(RESET)

        endpoint.attach(QUESTION)

        assert endpoint.open_requests() == [QUESTION]

    on_an_endpoint(test)


@pytest.mark.parametrize("answered", [True, False])
def test_requests_with_one_idempotency_key_are_one_call(answered: bool) -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        first = endpoint.attach(QUESTION, key="k")
        if answered:
            endpoint.answer(said("once"))
            first.reply_written()
            endpoint.attach(OTHER)
            endpoint.answer(said("other", OTHER))

        assert endpoint.attach(QUESTION, key="k").call is first.call
        assert endpoint.attach(QUESTION, key="another").call is not first.call
        assert endpoint.attach(QUESTION).call is not first.call
        assert endpoint.attach(AgentRequest("step", text="ls"), key="k").call is not first.call

    on_an_endpoint(test)


@pytest.mark.parametrize(("status", "asked"), [(429, True), (503, True), (404, False)])
def test_a_retry_repeats_a_call_that_failed_temporarily(status: int, asked: bool) -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.attach(QUESTION).reply_written()
        endpoint.answer(ErrorReply(QUESTION.d, status, "code", "words"))

        endpoint.attach(QUESTION, retry=True)

        assert bool(endpoint.open_requests()) is asked

    on_an_endpoint(test)


def test_a_reply_without_a_waiting_call_is_refused() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.attach(QUESTION)

        with pytest.raises(KeyError):
            endpoint.answer(said("what?", OTHER))

    on_an_endpoint(test)


def test_a_wait_ends_with_a_request_a_closed_line_or_a_timeout() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        await endpoint.wait(0.001)
        assert endpoint.open_requests() == []
        waits = asyncio.create_task(endpoint.wait(None))
        await asyncio.sleep(0)
        endpoint.attach(QUESTION)
        await waits
        endpoint.open_requests()
        waits = asyncio.create_task(endpoint.wait(None))
        await asyncio.sleep(0)
        await endpoint.close()
        await waits

    on_an_endpoint(test)


def test_a_request_before_the_wait_ends_it_at_once() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.open_requests()
        endpoint.attach(QUESTION)

        await asyncio.wait_for(endpoint.wait(None), 5)
        assert endpoint.waiting_clients() == 1

    on_an_endpoint(test)


def test_a_closed_line_answers_no_client_and_releases_its_open_calls() -> None:
    open_calls = OpenCalls()

    async def test(endpoint: GatewayEndpoint) -> None:
        client = endpoint.attach(QUESTION)
        await endpoint.close()
        await endpoint.close()

        assert await client.reply() is None
        assert endpoint.open_requests() == []
        assert open_calls.count == 0

    on_an_endpoint(test, open_calls)


def test_open_calls_are_bounded_for_a_session_and_a_worker() -> None:
    open_calls = OpenCalls(most=3, most_of_session=2)

    async def test(endpoint: GatewayEndpoint) -> None:
        for _ in range(2):
            endpoint.attach(QUESTION)
        with pytest.raises(TooManyOpen, match="2 requests of this agent"):
            endpoint.attach(QUESTION)
        endpoint.attach(QUESTION, retry=True)
        another = an_endpoint(open_calls)
        another.attach(QUESTION)
        with pytest.raises(TooManyOpen, match="3 requests of this worker"):
            another.attach(QUESTION)

        endpoint.answer(said("one"))

        another.attach(QUESTION)

    on_an_endpoint(test, open_calls)


def test_a_client_that_times_out_still_gets_its_answer_later() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        client = endpoint.attach(QUESTION)
        assert not await client.answered_within(0.001)
        endpoint.answer(said("late"))
        assert await client.answered_within(0.001)
        assert await client.reply() == said("late")

    on_an_endpoint(test)


def test_a_wake_before_the_wait_also_ends_it() -> None:
    async def test(endpoint: GatewayEndpoint) -> None:
        endpoint.wake()
        await asyncio.wait_for(endpoint.wait(None), 5)
        assert endpoint.open_requests() == []

        waiting = asyncio.create_task(endpoint.wait(None))
        await asyncio.sleep(0)
        assert not waiting.done()
        endpoint.wake()

        await asyncio.wait_for(waiting, 5)

    on_an_endpoint(test)
