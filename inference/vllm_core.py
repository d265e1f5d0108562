"""vLLM's AsyncLLM on an event loop and a thread of its own: token ids in, what was sampled out.

One driving thread calls; what requests come to is put into `news` and read from there. Everything
else waits for the loop's answer. vLLM computes in processes of its own, two beside this one.
"""

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.traced_loading import Loaded
from schemas.errors import EngineDied, WorkFailed
from schemas.foreign_text import raised
from schemas.messages import Sampling

T = TypeVar("T")

OWNER = "ENGINE_ENDS_WITH_PID"
"""The environment's name for the process that starts vLLM's."""

WARM_TOKENS = 64
"""A first prompt of 3 tokens killed vLLM's CPU worker by an illegal instruction, 3 of 3 times; one
of 21 never did. So the first is a long one."""
START_S = 600.0
"""Loading vLLM takes 40 s on two idle cores, and minutes where others want them too."""
REPLY_S = 120.0
"""How long weights may take to be read, or the engine to stop between two steps."""
LATE_S = 0.5
REMEDY = "start the worker again; if it comes back, serve with [models] engine = 'transformers'"


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """What vLLM is started with."""

    directory: Path
    precision: str
    context: int
    max_batch: int
    cache_bytes: int
    """Of keys and values."""
    threads: int


@dataclass(frozen=True, slots=True)
class News:
    """What came of a request since the last news of it."""

    ticket: int
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    ended: bool = False
    """Whether nothing more comes; a request that was halted has not ended."""
    failed: WorkFailed | EngineDied | None = None


class VllmCore:
    """Starts with its construction, which lasts until vLLM has answered for the first time.

    Raises EngineDied where it does not, and whenever its processes are gone.
    """

    def __init__(self, options: CoreOptions) -> None:
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._options = options
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._count = 0
        self._running: list[Any] = []
        self._wait(self._start(), START_S)
        self.close = weakref.finalize(self, _end, self._running, self._loop)
        """Ends vLLM's processes; nothing may be asked of it any more."""

    def submit(self, ids: Sequence[int], sampling: Sampling, limit: int, seed: int,
               stop_ids: Sequence[int]) -> int:  # fmt: skip
        """Begin to sample after these ids; the ticket names the request in `news`."""
        self._count += 1
        ticket = self._count
        asked = self._params(
            max_tokens=limit, temperature=sampling.temperature, top_p=sampling.top_p,
            top_k=sampling.top_k, seed=seed, stop_token_ids=list(stop_ids),
        )  # fmt: skip
        self._loop.call_soon_threadsafe(self._begin, ticket, list(ids), asked)
        return ticket

    def forget(self, ticket: int) -> None:
        """Stop sampling for a request; news of it that are on their way still come."""
        self._loop.call_soon_threadsafe(self._cancel, ticket)

    def halt(self) -> None:
        """Stop all requests; what they came to until now is in `news` when this returns."""
        self._wait(self._halt(), REPLY_S)

    def load(self, file: Path) -> Loaded:
        """Write a safetensors file over the model's weights and forget all keys of the old ones.

        To be called when halted. Returns what the model holds then.
        """
        return self._wait(self._load(file), REPLY_S)

    def score(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Natural log-probabilities of ids[1:] at temperature 1; to be called when halted."""
        return self._wait(self._score(list(ids)), REPLY_S)

    def _wait(self, coming: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What a coroutine on the loop comes to; anything that it raises is the engine's end."""
        try:
            return asyncio.run_coroutine_threadsafe(coming, self._loop).result(timeout_s)
        except Exception as error:
            msg = f"vLLM is of no use any more: {raised(error)}; {REMEDY}"
            raise EngineDied(msg) from error

    async def _start(self) -> None:
        _prepare(self._options)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from inference.vllm_worker import TiedExecutor

        options = self._options
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(
            model=str(options.directory), skip_tokenizer_init=True, dtype=options.precision,
            max_model_len=options.context, max_num_seqs=options.max_batch,
            kv_cache_memory_bytes=options.cache_bytes, enforce_eager=True,
            enable_chunked_prefill=False,  # a part of a seeded prompt ends it: no offsets on a CPU
            logprobs_mode="processed_logprobs", disable_log_stats=True,
            worker_extension_cls="inference.vllm_worker.InPlaceWeights",
            distributed_executor_backend=TiedExecutor,
        ))  # fmt: skip
        self._running.append(llm)
        count = max(1, min(WARM_TOKENS, options.context - 1))
        async for _ in self._sampled([0] * count, self._params(max_tokens=1), "warm"):
            pass
        await self._require_unpacked()

    def _params(self, **asked: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            logprobs=0, detokenize=False, output_kind=RequestOutputKind.DELTA, **asked
        )

    def _sampled(self, ids: list[int], asked: Any, name: str) -> Any:
        from vllm import TokensPrompt

        return self._running[0].generate(TokensPrompt(prompt_token_ids=ids), asked, name)

    def _begin(self, ticket: int, ids: list[int], asked: Any) -> None:
        task = self._loop.create_task(self._follow(ticket, ids, asked))
        self._tasks[ticket] = task
        task.add_done_callback(lambda done: self._tasks.pop(ticket, None))

    async def _follow(self, ticket: int, ids: list[int], asked: Any) -> None:
        try:
            async for output in self._sampled(ids, asked, str(ticket)):
                one = output.outputs[0]
                pairs = zip(one.token_ids, one.logprobs or (), strict=False)
                logprobs = [told[token].logprob for token, told in pairs]
                ended = output.finished and one.finish_reason != "abort"
                self.news.put(News(ticket, list(one.token_ids), logprobs, ended))
        except Exception as error:  # whatever vLLM says of one request
            self.news.put(News(ticket, failed=_failure(error)))

    def _cancel(self, ticket: int) -> None:
        task = self._tasks.get(ticket)
        if task is not None:
            task.cancel()  # which vLLM's generator takes for an abort

    async def _halt(self) -> None:
        await self._running[0].pause_generation(mode="abort")
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=LATE_S)
            for task in late:  # it came to vLLM when that had stopped already
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._running[0].resume_generation()

    async def _load(self, file: Path) -> Loaded:
        llm = self._running[0]
        [told] = await llm.collective_rpc("load_rollcall_weights", args=(str(file),))
        await llm.reset_prefix_cache()
        digests, stale = told
        return Loaded({name: (dtype, made) for name, (dtype, made) in digests.items()}, (*stale,))

    async def _require_unpacked(self) -> None:
        """No weights are in it afterwards."""
        [packed] = await self._running[0].collective_rpc("packed_layers")
        if packed:
            msg = f"it computes with packed copies of {packed[:3]}, which no later weights reach"
            raise RuntimeError(msg)

    async def _score(self, ids: list[int]) -> NDArray[np.float32]:
        from vllm import SamplingParams

        asked = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
        told: list[Any] = []
        async for output in self._sampled(ids, asked, "canary"):
            told = output.prompt_logprobs or told
        return np.array([told[at][ids[at]].logprob for at in range(1, len(ids))], np.float32)


def _failure(error: Exception) -> WorkFailed | EngineDied:
    """What becomes of a call of which vLLM says this."""
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return EngineDied(f"vLLM's processes are gone; {REMEDY}")
    return WorkFailed("raised", f"vLLM: {raised(error)}", retriable=True)


def _end(running: list[Any], loop: asyncio.AbstractEventLoop) -> None:
    running.pop().shutdown()  # and its finaliser runs while what it needs is still there
    loop.call_soon_threadsafe(loop.stop)


def _prepare(options: CoreOptions) -> None:
    """What vLLM reads from the environment when it is imported; what is set already stays.

    Eager or not, it has torch compile how it counts likelier tokens: by g++, at the first sampled
    token and at each new kind of batch, so a minute of a busy machine, and nothing at all where no
    compiler is. Seen with 0.32.
    """
    for name, value in {
        "OMP_NUM_THREADS": str(options.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }.items():  # fmt: skip
        os.environ.setdefault(name, value)
    os.environ[OWNER] = str(os.getpid())
