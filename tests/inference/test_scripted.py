from dataclasses import replace

from rollcall.inference.recorded import RecordedEngine
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Event, ModelAnswered, ModelCall
from rollcall.schemas.tool_calls import tool_calls_of
from tests.support.policies import body, call, failure, run, tokens


def refuses(call: ModelCall) -> str:
    msg = "out of words"
    raise WorkFailed("raised", msg, retriable=True)


def test_text_becomes_one_token_per_byte() -> None:
    engine = ScriptedEngine("policy", lambda call: f"é {call.position}", version=3)

    answered = body(engine, call(position=2, said="hi", max_tokens=99))

    assert answered.text == "é 2"
    assert tokens(answered.added_ids) == list(b"hi")
    assert tokens(answered.token_ids) == list("é 2".encode())
    assert tokens(answered.versions) == [3] * 4
    assert answered.finish_reason == "stop"


def test_text_longer_than_max_tokens_is_truncated() -> None:
    answered = body(ScriptedEngine("policy", lambda call: "long"), call(max_tokens=2))

    assert tokens(answered.token_ids) == list(b"lo")
    assert answered.finish_reason == "length"


def test_a_stop_string_is_removed_from_the_text_but_not_the_tokens() -> None:
    engine = ScriptedEngine("policy", lambda call: "one two three")

    answered, late = (
        body(engine, call(max_tokens=most, stop=("three", "two t", "wo"))) for most in (99, 6)
    )

    assert (answered.text, answered.finish_reason, answered.stopped_by) == ("one t", "stop", "wo")
    assert tokens(answered.token_ids) == list(b"one two")
    assert (late.text, late.finish_reason, late.stopped_by) == ("one tw", "length", "")


def test_a_call_for_no_tokens_does_not_run_the_script() -> None:
    answered = body(ScriptedEngine("policy", refuses), call(said="hi", max_tokens=0))

    assert tokens(answered.added_ids) == list(b"hi")
    assert (answered.text, answered.token_ids, answered.finish_reason) == ("", b"", "length")


def test_tool_calls_of_a_script_are_parsed_if_the_call_has_tools() -> None:
    said = 'So: <tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
    engine = ScriptedEngine("policy", lambda call: said)

    plain, calling = (
        body(engine, replace(call(max_tokens=200), tools=tools)) for tools in ("", "[]")
    )

    assert (plain.text, plain.tool_calls) == (said, "")
    assert (calling.text, [c.name for c in tool_calls_of(calling.tool_calls)]) == ("So:", ["bash"])
    assert plain.token_ids == calling.token_ids


def test_a_prepared_answer_is_returned_unchanged() -> None:
    prepared = ModelAnswered("L", b"", b"", b"", b"", "stop", "policy", 0)

    assert body(ScriptedEngine("policy", lambda call: prepared), call()) is prepared


def test_a_script_may_fail_a_call() -> None:
    failed = failure(ScriptedEngine("policy", refuses), call())

    assert (failed.code, failed.message, failed.retriable) == ("raised", "out of words", True)


def recorded(*said: tuple[ModelCall, str]) -> RecordedEngine:
    events = []
    for one, text in said:
        answered = body(ScriptedEngine("policy", lambda call, text=text: text), one)
        place = (one.rollout_id, one.attempt, one.position, one.tries)
        events.append(Event(*place, one.command_id, one.body_digest, "w", answered))
    return RecordedEngine("policy", events)


def test_a_repeated_call_gets_its_first_recorded_answer() -> None:
    engine = recorded((call(), "L"), (call(position=1), "D"), (call(), "R"))

    assert [answer.body.text for answer in run(engine, call(), call(position=1))] == ["L", "D"]


def test_the_same_request_of_another_rollout_is_found_by_its_body() -> None:
    asked = call("r0")
    engine = recorded((asked, "L"))

    elsewhere = ModelCall(
        "another",
        3,
        5,
        0,
        b"id",
        asked.body_digest,
        0,
        0,
        "sample",
        "policy",
        0,
        (),
        asked.sampling,
        0,
    )

    assert body(engine, elsewhere).text == "L"


def test_a_call_without_a_record_fails_permanently() -> None:
    failed = failure(recorded((call(), "L")), call("another"))

    assert (failed.code, failed.retriable) == ("not_recorded", False)
    assert "'another', attempt 1, position 0" in failed.message
