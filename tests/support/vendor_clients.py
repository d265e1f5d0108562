"""What agents do with their vendors' clients; runs in any interpreter and imports nothing of ours.

    python vendor_clients.py CLIENT URL KEY

with a client that is openai, anthropic or litellm, reads names of scenarios, a line each, and
prints a line of JSON for each: what the client made of the answer, or the error that it raised.
`connect URL KEY` goes elsewhere. The policy behind the URL answers the last message: `say X` with
X, `call NAME JSON` with a tool call, `error STATUS` with an error, `slow X` as X, but late.
"""

import json
import os
import sys
import time

TOOL = {
    "name": "bash",
    "description": "Run a command",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}
ARGUMENTS = '{"command":"ls -l"}'


def user(text):
    return [{"role": "user", "content": text}]


def dumped(value):
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


class OpenAI:
    """Chat and Responses, of either major."""

    def __init__(self, url, key):
        import openai

        self.module = openai
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=60)
        self.chat = self.client.chat.completions
        self.responses = self.client.responses
        self.chat_tools = [{"type": "function", "function": TOOL}]
        self.flat_tools = [{"type": "function", **TOOL}]

    def version(self):
        return self.module.__version__

    def models(self):
        return [model.id for model in self.client.models.list()]

    def chat_json(self):
        made = self.chat.create(model="policy", messages=user("say hello there"))
        choice = made.choices[0]
        return [
            choice.message.content,
            choice.finish_reason,
            made.usage.total_tokens > 0,
            len(made.id) == 32,
        ]

    def chat_parts(self):
        parts = [{"type": "text", "text": "say "}, {"type": "text", "text": "in parts"}]
        made = self.chat.create(model="policy", messages=user(parts))
        return made.choices[0].message.content

    def chat_stream(self):
        stream = self.chat.create(
            model="policy",
            messages=user("say hello there"),
            stream=True,
            stream_options={"include_usage": True},
        )
        text, finish, usage = "", None, None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
        return [text, finish, usage.total_tokens > 0]

    def chat_votes(self):
        made = self.chat.create(model="policy", messages=user("say yes"), n=3)
        return [[choice.index, choice.message.content] for choice in made.choices]

    def chat_cut(self):
        made = self.chat.create(model="policy", messages=user("say a b c"), max_tokens=1)
        return made.choices[0].finish_reason

    def chat_logprobs(self):
        made = self.chat.create(
            model="policy",
            messages=user("say a"),
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
        [entry, *_] = made.choices[0].logprobs.content
        return [entry.logprob <= 0, len(dumped(made)["choices"][0]["token_ids"]) > 0]

    def chat_tools_json(self):
        messages = user(f"call bash {ARGUMENTS}")
        made = self.chat.create(model="policy", messages=messages, tools=self.chat_tools)
        message = made.choices[0].message
        [call] = message.tool_calls
        messages += [dumped(message), self._result(call.id)]
        then = self.chat.create(model="policy", messages=messages, tools=self.chat_tools)
        return [
            [call.function.name, json.loads(call.function.arguments)],
            made.choices[0].finish_reason,
            then.choices[0].message.content,
        ]

    def chat_tools_stream(self):
        stream = self.chat.create(
            model="policy",
            messages=user(f"call bash {ARGUMENTS}"),
            tools=self.chat_tools,
            stream=True,
        )
        name, arguments, finish = "", "", None
        for chunk in stream:
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or ():
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
        return [[name, json.loads(arguments)], finish]

    def _result(self, call_id):
        return {"role": "tool", "tool_call_id": call_id, "content": "say done"}

    def responses_json(self):
        made = self.responses.create(model="policy", input="say hello there")
        return [made.output_text, made.status, made.usage.total_tokens > 0]

    def responses_stream(self):
        text, last = "", None
        for event in self.responses.create(model="policy", input="say hello there", stream=True):
            last = event
            if event.type == "response.output_text.delta":
                text += event.delta
        return [text, last.type, last.response.output_text]

    def responses_reader(self):
        with self.responses.stream(model="policy", input="say hello there") as stream:
            for _ in stream:
                pass
            return stream.get_final_response().output_text

    def responses_tools_json(self):
        asked = [{"role": "user", "content": f"call bash {ARGUMENTS}"}]
        made = self.responses.create(model="policy", input=asked, tools=self.flat_tools)
        [call] = [item for item in made.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "say done"}
        asked += [*(dumped(item) for item in made.output), result]
        then = self.responses.create(model="policy", input=asked, tools=self.flat_tools)
        return [[call.name, json.loads(call.arguments)], then.output_text]

    def responses_tools_stream(self):
        name, arguments = "", ""
        for event in self.responses.create(
            model="policy",
            input=f"call bash {ARGUMENTS}",
            tools=self.flat_tools,
            stream=True,
        ):
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
            if event.type == "response.output_item.done" and event.item.type == "function_call":
                name = event.item.name
        return [name, json.loads(arguments)]

    def responses_continued(self):
        made = self.responses.create(model="policy", input="say first")
        then = self.responses.create(
            model="policy", input="say second", previous_response_id=made.id
        )
        return [then.output_text, then.previous_response_id == made.id]

    def error(self, words):
        return self.chat.create(model="policy", messages=user(f"error {words}"))

    def responses_error(self, words):
        return self.responses.create(model="policy", input=f"error {words}")

    def responses_reasoning(self):
        wished = {
            "model": "policy",
            "tools": self.flat_tools,
            "store": False,
            "reasoning": {"effort": "low"},
            "include": ["reasoning.encrypted_content"],
        }
        asked = user(f"call bash {ARGUMENTS}")
        made = self.responses.create(input=asked, **wished)
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
        [call] = made.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "say done"}
        then = self.responses.create(input=[*asked, thought, dumped(call), result], **wished)
        return [made.reasoning.effort, then.output_text]

    def many_alternatives(self):
        asked = {"messages": user("say a"), "logprobs": True, "top_logprobs": 5}
        return self.chat.create(model="policy", **asked)

    def malformed(self):
        return self.chat.create(model="policy", messages="none at all")

    def responses_malformed(self):
        return self.responses.create(model="policy", input=7)

    def wrong_key(self):
        return self.client.with_options(api_key="wrong").models.list()

    def late_stream(self):
        return self._all(self.chat.create(model="policy", messages=user("slow say x"), stream=True))

    def late_error(self):
        asked = user("slow error 404")
        return self._all(self.chat.create(model="policy", messages=asked, stream=True))

    def responses_late_error(self):
        for _ in self.responses.create(model="policy", input="slow error 404", stream=True):
            pass

    def _all(self, stream):
        deltas = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
        return "".join(deltas)


class Anthropic:
    """Messages."""

    def __init__(self, url, key):
        import anthropic

        self.module = anthropic
        self.client = anthropic.Anthropic(base_url=url, api_key=key, timeout=60)
        self.messages = self.client.messages
        tool = {"name": "bash", "description": "Run", "input_schema": TOOL["parameters"]}
        self.common = {"model": "policy", "max_tokens": 256}
        self.tools = [tool]

    def version(self):
        return self.module.__version__

    def models(self):
        return [model.id for model in self.client.models.list()]

    def messages_json(self):
        made = self.messages.create(
            **self.common, system="be brief", messages=user("say hello there")
        )
        return [made.content[0].text, made.stop_reason, made.usage.output_tokens > 0]

    def messages_stream(self):
        with self.messages.stream(**self.common, messages=user("say hello there")) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        return [text, final.stop_reason, final.content[0].text]

    def messages_cut(self):
        made = self.messages.create(model="policy", max_tokens=1, messages=user("say a b c"))
        return made.stop_reason

    def messages_tools_json(self):
        asked = user(f"call bash {ARGUMENTS}")
        made = self.messages.create(**self.common, messages=asked, tools=self.tools)
        [call] = [block for block in made.content if block.type == "tool_use"]
        asked += [
            {"role": "assistant", "content": [dumped(block) for block in made.content]},
            {"role": "user", "content": [self._result(call.id)]},
        ]
        then = self.messages.create(**self.common, messages=asked, tools=self.tools)
        return [[call.name, call.input], made.stop_reason, then.content[0].text]

    def messages_tools_stream(self):
        asked = user(f"call bash {ARGUMENTS}")
        with self.messages.stream(**self.common, messages=asked, tools=self.tools) as stream:
            final = stream.get_final_message()
        [call] = [block for block in final.content if block.type == "tool_use"]
        return [[call.name, call.input], final.stop_reason]

    def _result(self, call_id):
        return {"type": "tool_result", "tool_use_id": call_id, "content": "say done"}

    def count_tokens(self):
        made = self.messages.count_tokens(model="policy", messages=user("say a b c"))
        return made.input_tokens > 0

    def error(self, words):
        return self.messages.create(**self.common, messages=user(f"error {words}"))

    def malformed(self):
        return self.messages.create(**self.common, messages=7)

    def wrong_key(self):
        client = self.client.with_options(api_key="wrong")
        return client.messages.create(**self.common, messages=user("say x"))

    def late_stream(self):
        with self.messages.stream(**self.common, messages=user("slow say x")) as stream:
            return "".join(stream.text_stream)

    def late_error(self):
        with self.messages.stream(**self.common, messages=user("slow error 404")) as stream:
            return "".join(stream.text_stream)


class LiteLLM:
    """As mini-swe-agent asks."""

    def __init__(self, url, key):
        os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="CRITICAL")
        import litellm

        litellm.suppress_debug_info = True
        self.module = litellm
        self.common = {"model": "openai/policy", "api_base": f"{url}/v1", "api_key": key}
        self.tools = [{"type": "function", "function": TOOL}]

    def version(self):
        from importlib.metadata import version

        return version("litellm")

    def chat_json(self):
        made = self.module.completion(**self.common, messages=user("say hello there"))
        return [made.choices[0].message.content, made.choices[0].finish_reason]

    def chat_stream(self):
        stream = self.module.completion(
            **self.common, messages=user("say hello there"), stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    def chat_tools_json(self):
        messages = user(f"call bash {ARGUMENTS}")
        made = self.module.completion(**self.common, messages=messages, tools=self.tools)
        message = made.choices[0].message
        [call] = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "say done"}
        messages += [message.model_dump(), result]
        then = self.module.completion(**self.common, messages=messages, tools=self.tools)
        called = [call.function.name, json.loads(call.function.arguments)]
        return [called, then.choices[0].message.content]

    def error(self, words):
        return self.module.completion(**self.common, messages=user(f"error {words}"))

    def wrong_key(self):
        common = {**self.common, "api_key": "wrong"}
        return self.module.completion(**common, messages=user("say x"))


KINDS = {"openai": OpenAI, "anthropic": Anthropic, "litellm": LiteLLM}


def outcome(client, line):
    """What came of a scenario, as JSON."""
    name, _, words = line.partition(" ")
    began = time.monotonic()
    try:
        value = getattr(client, name)(*filter(None, [words]))
        return {"value": dumped(value)}
    except Exception as error:
        return {
            "raised": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "words": str(error),
            "took_s": time.monotonic() - began,
        }


def hosted(task, url, key):
    """As an agent: do what the rollout's config names, and hand in what came of it."""
    outcomes = {}
    for kind, scenarios in task["config"]["scenarios"].items():
        client = KINDS[kind](url, key)
        done = {name: outcome(client, name) for name in scenarios}
        outcomes[kind] = {n: did.get("value", did.get("raised")) for n, did in done.items()}
    return json.dumps(outcomes)


def main(kind, url, key):
    client = KINDS[kind](url, key)
    for line in sys.stdin:
        scenario, *words = line.split()
        if scenario == "connect":
            client = KINDS[kind](*words)
            print("{}", flush=True)
        else:
            print(json.dumps(outcome(client, line.strip())), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
