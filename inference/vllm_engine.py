"""An engine on vLLM: it samples in the background, and a step collects its results.

Token ids go in and out; templates, ends and stop strings are those of the other engines
(`rollcall.inference.slot`). vLLM starts with the first weights, on the thread that stages them.

Adoption stops everything: results of all requests are collected under the old version, the weights
are overwritten, digests prove that every tensor in vLLM is one of the version's
(`rollcall.inference.traced_loading`), the canary is scored as the only request, and then every call
continues from its own tokens, with keys of the new weights alone. vLLM's way to freeze requests
(`pause_generation(mode="keep")`) would let them sample beside a canary that may still fail. If the
canary fails, the earlier weights are loaded again.

An engine's replicas share one vLLM: they take turns (`rollcall.inference.vllm_turns`), and a turn
begins like an adoption.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from rollcall.inference.canary import prove_by
from rollcall.inference.engine import EngineAnswer
from rollcall.inference.load_weights import (
    PublishedDigests,
    digests_of,
    places_of,
    require_loaded,
    weights_of,
)
from rollcall.inference.policy_dir import load_policy
from rollcall.inference.sampling import GOLDEN
from rollcall.inference.slot import Slot, slot_or_failure
from rollcall.inference.slot_answer import Decoder, answer_of
from rollcall.inference.vllm_core import REMEDY, CoreOptions, RequestProgress, VllmCore
from rollcall.inference.vllm_place import require_vllm
from rollcall.inference.vllm_turns import SharedVllm
from rollcall.inference.waiting_calls import WaitingCalls, is_of
from rollcall.schemas.errors import EngineDied, WorkFailed
from rollcall.schemas.messages import CallFailed, ModelCall, PolicyVersion
from rollcall.schemas.published_weights import HeldWeights
from rollcall.schemas.weights import write_weights

WAIT_S = 0.002
"""The wait between steps: about the duration of a decode step of a small policy."""
MOST_SEED = 1 << 63


@dataclass(frozen=True, slots=True)
class _Weights:
    """A version, and the file with its tensors."""

    version: PolicyVersion
    file: Path
    digests: PublishedDigests


class VllmEngine:
    """An engine for a policy directory on a CPU; see `rollcall.inference.engine.Engine`.

    `max_cache_bytes` bounds keys and values. `start` may return a core that runs already; by
    default one is started with the first weights, or that of `beside` is shared. Raises Refused
    if vLLM is not installed or cannot run.
    """

    def __init__(
        self,
        policy_id: str,
        directory: str | Path,
        *,
        device: str = "cpu",
        max_batch: int = 128,
        max_cache_bytes: int = 1 << 30,
        threads: int | None = None,
        start: Callable[[CoreOptions], VllmCore] = VllmCore,
        beside: SharedVllm | None = None,
    ) -> None:
        require_vllm(device)
        self.policy_id = policy_id
        self.version = -1
        self.wait_s = WAIT_S
        self.sampled_tokens = 0
        """The number of tokens sampled so far."""
        whole = load_policy(directory)
        self._places = places_of(whole.model)
        # Only the model's config is needed from here on; vLLM has the weights.
        self.policy = replace(whole, model=SimpleNamespace(config=whole.model.config))
        options = CoreOptions(
            Path(directory),
            whole.precision,
            whole.context,
            max_batch,
            max_cache_bytes,
            threads or 1,
        )
        self._shared = beside or SharedVllm(options, start)
        self._held = HeldWeights()
        self._files = TemporaryDirectory(prefix="rollcall-vllm-")
        self._staged: _Weights | None = None
        self._serving: _Weights | None = None
        self._waiting = WaitingCalls()
        self._open: dict[int, Slot] = {}
        self._paused: list[Slot] = []
        """Slots to submit again in the next turn."""
        self._ended: list[EngineAnswer] = []
        self._decode = Decoder(self.policy.tokenizer)

    def add(self, call: ModelCall) -> None:
        self._waiting.add(call, self.version)

    def busy(self) -> bool:
        started = self._open or self._paused or self._ended
        return self.version >= 0 and bool(started or self._waiting.ready)

    def expire(self, now_ms: int) -> list[ModelCall]:
        return self._waiting.expire(now_ms)

    def abort(self, rollout_id: str, attempt: int) -> None:
        self._waiting.abort(rollout_id, attempt)
        self._paused = [r for r in self._paused if not is_of(r.call, rollout_id, attempt)]
        for ticket, row in list(self._open.items()):
            if is_of(row.call, rollout_id, attempt):
                del self._open[ticket]
                if self._shared.core is not None:
                    self._shared.core.forget(ticket)

    def step(self) -> list[EngineAnswer]:
        """Submit the calls that there is room for, and collect the tokens sampled meanwhile."""
        core = self._shared.core
        if self.version >= 0 and core is not None and self._has_turn():
            self._admit(core)
            self._collect_progress(core)
        ended, self._ended = self._ended, []
        return ended

    def replica(self) -> "VllmEngine":
        """Return an engine that takes turns with this one on the same vLLM."""
        options = self._shared.options
        return VllmEngine(
            self.policy_id, options.directory, max_batch=options.max_batch, beside=self._shared
        )

    def stage(self, version: PolicyVersion) -> None:
        """See the protocol; the weights are staged in a file, as vLLM runs in another process."""
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.file.unlink()
        if version.version <= self.version:
            return
        raw = weights_of(self._places, self.policy_id, version, self._held)
        file = write_weights(Path(self._files.name).as_uri(), version.version, raw, by_tensor=True)
        path = Path(file.uri.removeprefix("file://"))
        digests = digests_of(raw, version.version, path, self.policy.precision)
        self._shared.start()
        self._staged = _Weights(version, path, digests)

    def adopt(self) -> None:
        """See the protocol; it takes the time of a step, of loading the weights and of the canary.

        Also raises EngineDied if vLLM's processes are gone.
        """
        if self._staged is None:
            return
        staged, self._staged = self._staged, None
        with self._shared.turn_of(self) as core:
            try:
                self._load_and_prove(core, staged)
            except WorkFailed:
                staged.file.unlink()
                self._held.forget()  # so that a retry reads all of it again
                self._restore(core)
                raise
            else:
                self._mark_serving(staged)
            finally:
                self._resume(core)

    def pause(self, core: VllmCore) -> None:
        """See `rollcall.inference.vllm_turns.Guest`."""
        core.halt()
        self._collect_progress(core)
        self._paused += self._open.values()
        self._open = {}

    def _has_turn(self) -> bool:
        """Return True if it has the turn; takes the turn if it has work and vLLM is free."""
        if self._shared.guest() is self:
            return True
        if not (self._paused or self._waiting.ready) or not self._shared.is_free():
            return False
        with self._shared.turn_of(self) as core:
            self._restore(core)
            self._resume(core)
        return True

    def _restore(self, core: VllmCore) -> None:
        """Reload the serving weights, if any; they were proven, so a failure is EngineDied."""
        if self._serving is None:
            self._shared.leave()
            return
        try:
            self._load_and_prove(core, self._serving)
        except WorkFailed as error:
            msg = f"vLLM does not serve version {self.version} as it did: {error}; {REMEDY}"
            raise EngineDied(msg) from error

    def _load_and_prove(self, core: VllmCore, weights: _Weights) -> None:
        """Load a file of weights and prove it; raises WorkFailed if that fails."""
        require_loaded(weights.digests, core.load(weights.file), self._places)
        prove_by(core.score, self.policy, weights.version)

    def _mark_serving(self, weights: _Weights) -> None:
        if self._serving is not None:
            self._serving.file.unlink()
        self._serving, self.version = weights, weights.version.version
        self._waiting.release(self.version)

    def _resume(self, core: VllmCore) -> None:
        """Submit the paused slots again, each continuing from the tokens that it has."""
        rows, self._paused = self._paused, []
        for row in rows:
            self._submit(core, row)

    def _admit(self, core: VllmCore) -> None:
        """Submit waiting calls, in order, while there is room."""
        ready = self._waiting.ready
        while ready and len(self._open) < self._shared.options.max_batch:
            call = ready.popleft()
            row = slot_or_failure(call, self.policy, self._decode)
            if isinstance(row, CallFailed):
                self._ended.append(EngineAnswer(call, row))
            elif row.finish:
                self._answer(row)
            else:
                self._submit(core, row)

    def _submit(self, core: VllmCore, row: Slot) -> None:
        """Submit a slot; tokens after an adoption are sampled with a different seed."""
        sampled = len(row.logprobs)
        seed = (row.seed + sampled * int(GOLDEN)) % MOST_SEED
        stop_ids = sorted(self.policy.end_ids)
        ticket = core.submit(row.tokens, row.call.sampling, row.limit - sampled, seed, stop_ids)
        self._open[ticket] = row

    def _collect_progress(self, core: VllmCore) -> None:
        """Add sampled tokens to their calls; they were sampled by the version now in force."""
        while not core.progress.empty():
            progress = core.progress.get()
            row = self._open.get(progress.ticket)
            if isinstance(progress.failed, EngineDied):
                raise progress.failed
            if row is None:  # aborted, or submitted again since
                continue
            if progress.failed is not None:
                del self._open[progress.ticket]
                error = progress.failed
                failure = CallFailed(error.code, str(error), error.retriable)
                self._ended.append(EngineAnswer(row.call, failure))
            else:
                self._extend(core, progress, row)

    def _extend(self, core: VllmCore, progress: RequestProgress, row: Slot) -> None:
        for token, logprob in zip(progress.tokens, progress.logprobs, strict=True):
            row.add(token, logprob, self.version, self.policy.end_ids)
            self.sampled_tokens += 1
            if row.finish:  # only this process knows stop strings
                break
        if progress.ended and not row.finish:
            row.finish = "length"
        if row.finish:
            del self._open[progress.ticket]
            if not progress.ended:
                core.forget(progress.ticket)
            self._answer(row)

    def _answer(self, row: Slot) -> None:
        body = answer_of(row, self.policy, self._decode, "vllm")
        self._ended.append(EngineAnswer(row.call, body))
