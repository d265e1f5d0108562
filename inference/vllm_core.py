"""vLLM's AsyncLLM on an event loop in a separate thread: token ids in, sampled tokens out.

One driving thread calls it, and reads results of requests from `progress`. All other methods wait
for the loop. vLLM computes in two further processes.
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

from rollcall.inference.traced_loading import Loaded
from rollcall.inference.vllm_place import OWNER
from rollcall.schemas.errors import EngineDied, FailureCode, WorkFailed
from rollcall.schemas.messages import Sampling
from rollcall.schemas.untrusted_text import describe_exception

T = TypeVar("T")

WARM_TOKENS = 64
"""The length of the first prompt: one of 3 tokens killed vLLM's CPU worker with an illegal
instruction, 3 of 3 times; one of 21 never did."""
START_S = 600.0
"""The timeout of a start: loading vLLM takes 40 s on two idle cores, minutes on busy ones."""
REPLY_S = 120.0
"""The timeout of reading weights, or of stopping the engine between two steps."""
LATE_S = 0.5
REMEDY = "start the worker again; if it comes back, serve with [models] engine = 'transformers'"


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """The options with which vLLM is started."""

    directory: Path
    precision: str
    context: int
    max_batch: int
    cache_bytes: int
    """The bytes of keys and values."""
    threads: int


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """The progress of a request since the last report."""

    ticket: int
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    ended: bool = False
    """True if no further report follows; a request that was halted has not ended."""
    failed: WorkFailed | EngineDied | None = None


class VllmCore:
    """A running vLLM; its construction returns when vLLM has answered for the first time.

    Raises EngineDied if it does not, and whenever its processes are gone.
    """

    def __init__(self, options: CoreOptions) -> None:
        self.progress: queue.SimpleQueue[RequestProgress] = queue.SimpleQueue()
        self._options = options
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._count = 0
        self._running: list[Any] = []
        self._wait(self._start(), START_S)
        self.close = weakref.finalize(self, _end, self._running, self._loop)
        """End vLLM's processes; no other method may be called afterwards."""

    def submit(
        self, ids: Sequence[int], sampling: Sampling, limit: int, seed: int, stop_ids: Sequence[int]
    ) -> int:
        """Begin to sample after these ids; return the request's name in `progress`."""
        self._count += 1
        ticket = self._count
        params = self._params(
            max_tokens=limit,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            stop_token_ids=list(stop_ids),
        )
        self._loop.call_soon_threadsafe(self._begin, ticket, list(ids), params)
        return ticket

    def forget(self, ticket: int) -> None:
        """Stop sampling for a request; reports already on their way still come."""
        self._loop.call_soon_threadsafe(self._cancel, ticket)

    def halt(self) -> None:
        """Stop all requests; their results until now are in `progress` when this returns."""
        self._wait(self._halt(), REPLY_S)

    def load(self, file: Path) -> Loaded:
        """Write a safetensors file over the model's weights and drop all keys of the old ones.

        Call it when halted. Returns what the model holds then.
        """
        return self._wait(self._load(file), REPLY_S)

    def score(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return natural log-probabilities of ids[1:] at temperature 1; call it when halted."""
        return self._wait(self._score(list(ids)), REPLY_S)

    def _wait(self, coming: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return the result of a coroutine on the loop; any exception of it ends the engine."""
        try:
            return asyncio.run_coroutine_threadsafe(coming, self._loop).result(timeout_s)
        except Exception as error:
            msg = f"vLLM cannot be used any more: {describe_exception(error)}; {REMEDY}"
            raise EngineDied(msg) from error

    async def _start(self) -> None:
        _prepare(self._options)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from rollcall.inference.vllm_worker import TiedExecutor

        options = self._options
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(options.directory),
                skip_tokenizer_init=True,
                dtype=options.precision,
                max_model_len=options.context,
                max_num_seqs=options.max_batch,
                kv_cache_memory_bytes=options.cache_bytes,
                enforce_eager=True,
                # A part of a seeded prompt ends vLLM on a CPU: its generator takes no offset.
                enable_chunked_prefill=False,
                logprobs_mode="processed_logprobs",
                disable_log_stats=True,
                worker_extension_cls="rollcall.inference.vllm_worker.InPlaceWeights",
                distributed_executor_backend=TiedExecutor,
            )
        )
        self._running.append(llm)
        count = max(1, min(WARM_TOKENS, options.context - 1))
        async for _ in self._sampled([0] * count, self._params(max_tokens=1), "warm"):
            pass
        await self._require_unpacked()

    def _params(self, **params: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            logprobs=0, detokenize=False, output_kind=RequestOutputKind.DELTA, **params
        )

    def _sampled(self, ids: list[int], params: Any, name: str) -> Any:
        from vllm import TokensPrompt

        return self._running[0].generate(TokensPrompt(prompt_token_ids=ids), params, name)

    def _begin(self, ticket: int, ids: list[int], params: Any) -> None:
        task = self._loop.create_task(self._follow(ticket, ids, params))
        self._tasks[ticket] = task
        task.add_done_callback(lambda done: self._tasks.pop(ticket, None))

    async def _follow(self, ticket: int, ids: list[int], params: Any) -> None:
        try:
            async for output in self._sampled(ids, params, str(ticket)):
                one = output.outputs[0]
                pairs = zip(one.token_ids, one.logprobs or (), strict=False)
                logprobs = [scores[token].logprob for token, scores in pairs]
                ended = output.finished and one.finish_reason != "abort"
                self.progress.put(RequestProgress(ticket, list(one.token_ids), logprobs, ended))
        except Exception as error:  # any error of vLLM about one request
            self.progress.put(RequestProgress(ticket, failed=_failure(error)))

    def _cancel(self, ticket: int) -> None:
        task = self._tasks.get(ticket)
        if task is not None:
            task.cancel()  # vLLM's generator treats this as an abort

    async def _halt(self) -> None:
        await self._running[0].pause_generation(mode="abort")
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=LATE_S)
            for task in late:  # it reached vLLM after that had stopped
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._running[0].resume_generation()

    async def _load(self, file: Path) -> Loaded:
        llm = self._running[0]
        [(digests, stale)] = await llm.collective_rpc("load_rollcall_weights", args=(str(file),))
        await llm.reset_prefix_cache()
        return Loaded({name: (dtype, made) for name, (dtype, made) in digests.items()}, (*stale,))

    async def _require_unpacked(self) -> None:
        """Raise if vLLM packs its weights; the model's weights are zeroed afterwards."""
        [packed] = await self._running[0].collective_rpc("packed_layers")
        if packed:
            msg = f"it computes with packed copies of {packed[:3]}, which no later weights reach"
            raise RuntimeError(msg)

    async def _score(self, ids: list[int]) -> NDArray[np.float32]:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
        scores: list[Any] = []
        async for output in self._sampled(ids, params, "canary"):
            scores = output.prompt_logprobs or scores
        return np.array([scores[at][ids[at]].logprob for at in range(1, len(ids))], np.float32)


def _failure(error: Exception) -> WorkFailed | EngineDied:
    """Return the failure of a call for an error of vLLM."""
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return EngineDied(f"vLLM's processes are gone; {REMEDY}")
    return WorkFailed(FailureCode.RAISED, f"vLLM: {describe_exception(error)}", retriable=True)


def _end(running: list[Any], loop: asyncio.AbstractEventLoop) -> None:
    running.pop().shutdown()  # and its finaliser runs while its dependencies still exist
    loop.call_soon_threadsafe(loop.stop)


def _prepare(options: CoreOptions) -> None:
    """Set the environment variables that vLLM reads on import, unless they are set already.

    Eager or not, it has torch compile its count of likelier tokens with g++, at the first sampled
    token and at each new kind of batch: a minute on a busy machine, and a failure where there is
    no compiler. Seen with 0.32.
    """
    for name, value in {
        "OMP_NUM_THREADS": str(options.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }.items():
        os.environ.setdefault(name, value)
    os.environ[OWNER] = str(os.getpid())
