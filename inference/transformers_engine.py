"""The default engine: Hugging Face models, one decode step at a time, calls joining and leaving.

A row of the batch consists of its tokens and the number of them that the model was fed under the
present weights. A step feeds each row the tokens that it missing and samples one token for each row
that then missing none. So prefill, decoding, the next turn of a conversation and the new prefill
after new weights are the same operation. Log-probabilities are float32, natural, of the sampled
distribution (`rollcall.inference.sampling`); each token carries the version in force at its step.

Weights are checked: a version serves only after the canary, scored through a cache like that of
calls, agrees with the trainer. It is scored while the version is staged, by a second model that
shares the staged tensors, so adoption between two steps only swaps pointers. If it does not agree,
the earlier weights stay in service with all their keys.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rollcall.inference.canary import prove
from rollcall.inference.engine import EngineAnswer
from rollcall.inference.exact_rows import CHUNK, ExactRows, read_once
from rollcall.inference.key_values import BatchKv, PrefixCache
from rollcall.inference.load_weights import SecondSet, require_held, same_weights, second_set
from rollcall.inference.policy_dir import Policy, load_policy
from rollcall.inference.sampling import draw, uniforms
from rollcall.inference.slot import Slot, slot_or_failure
from rollcall.inference.slot_answer import Decoder, answer_of
from rollcall.inference.waiting_calls import WaitingCalls, is_of
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.messages import CallFailed, ModelAnswered, ModelCall, PolicyVersion
from rollcall.schemas.packed import pack_ids
from rollcall.schemas.process_memory import return_large_blocks
from rollcall.schemas.published_weights import HeldWeights

PASS = 8192
"""The most tokens of one forward pass, padding included: bounds the memory of activations."""

ID_BYTES = 4
"""Bytes of a packed token id. The last token of a prefix was sampled, so it has no keys yet."""

SHARED = 64
"""The least tokens of a prompt whose keys are kept for siblings that begin with it."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """Weights that wait for `adopt`."""

    version: PolicyVersion
    weights: SecondSet
    off: WorkFailed | None
    """The reason why they may not serve, if their canary is off."""


class TransformersEngine:
    """An engine for a policy directory; see `rollcall.inference.engine.Engine`.

    A `policy` that is already loaded is used, not the directory. `max_cache_bytes` bounds
    the keys and values of the running batch; those of kept prefixes take a quarter more. `threads`
    sets torch's threads for the whole process. `exact` computes as the trainer does
    (`rollcall.inference.exact_rows`).
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
        policy: Policy | None = None,
        exact: bool = False,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.policy_id = policy_id
        self.version = -1
        self.wait_s = 0.0
        self.fed_tokens = 0
        """Tokens that the model has read so far; shows the savings of the prefix cache."""
        self.policy = policy or load_policy(directory, device)
        return_large_blocks(sum(each.nbytes for each in self.policy.model.parameters()))
        self._device = torch.device(device)
        self._max_batch, self._max_bytes = max_batch, max_cache_bytes
        self.held = HeldWeights()
        self._adopted: PolicyVersion | None = None
        """The version that the model holds and has proven; a replica begins with the original's."""
        self._staged: _Staged | None = None
        self._exact = exact
        model = self.policy.model
        self._kv = ExactRows(model) if exact else BatchKv(model, most_bytes=max_cache_bytes)
        self._prefixes = PrefixCache(max_cache_bytes // 4)
        self._rows: list[Slot] = []
        self._waiting = WaitingCalls()
        self._decode = Decoder(self.policy.tokenizer)

    def add(self, call: ModelCall) -> None:
        self._waiting.add(call, self.version)

    def busy(self) -> bool:
        return self.version >= 0 and bool(self._rows or self._waiting.ready)

    def expire(self, now_ms: int) -> list[ModelCall]:
        return self._waiting.expire(now_ms)

    def abort(self, rollout_id: str, attempt: int) -> None:
        self._waiting.abort(rollout_id, attempt)
        for index in reversed(range(len(self._rows))):
            if is_of(self._rows[index].call, rollout_id, attempt):
                self._remove(index)

    def step(self) -> list[EngineAnswer]:
        if self.version < 0:
            return []
        with torch.inference_mode():
            answers = self._admit()
            self._make_room(0)
            for group in self._groups():
                self._advance(group)
            return answers + self._ended()

    def replica(self) -> "TransformersEngine":
        """Return an engine that shares the weights until it adopts its own, with half the room for
        keys and values."""
        policy = replace(self.policy, model=same_weights(self.policy.model))
        replica = TransformersEngine(
            self.policy_id,
            "",
            device=str(self._device),
            max_batch=self._max_batch,
            max_cache_bytes=self._max_bytes // 2,
            policy=policy,
            exact=self._exact,
        )
        replica.held, replica._adopted = HeldWeights(keeps=False), self._adopted
        return replica

    def stage(self, version: PolicyVersion) -> None:
        """See the protocol; holds a second copy of the weights until `adopt`."""
        self._staged = None
        if version.version <= self.version:
            return
        if version == self._adopted:
            self._staged = _Staged(version, SecondSet((), ()), None)
            return
        weights = second_set(self.policy, self.policy_id, version, self.held)
        off = None
        try:
            staged = weights.model(self.policy.model)
            require_held(staged, version, weights.published)
            with torch.inference_mode():
                prove(replace(self.policy, model=staged), version)
        except WorkFailed as error:
            off = error
        self._staged = _Staged(version, replace(weights, published={}), off)

    def adopt(self) -> None:
        """See the protocol; swaps pointers and drops all keys."""
        staged, self._staged = self._staged, None
        if staged is None:
            return
        if staged.off is not None:
            self.held.forget()  # so that a retry reads all of it again
            raise staged.off
        wanted = staged.weights.pointers()
        staged.weights.swap()
        if [tensor.data_ptr() for tensor in staged.weights.own] != wanted:
            msg = f"the model does not hold the weights of version {staged.version.version}"
            raise WorkFailed(FailureCode.WEIGHTS, msg, retriable=False)
        self._forget_keys()
        self._adopted, self.version = staged.version, staged.version.version
        self._waiting.release(self.version)

    def _admit(self) -> list[EngineAnswer]:
        """Admit waiting calls to the batch, in order, while there is room."""
        answered, later = [], []
        widest = max((row.width for row in self._rows), default=0)
        opening = {row.shares for row in self._rows if row.shares}
        ready = self._waiting.ready
        while ready and len(self._rows) < self._max_batch:
            call = ready.popleft()
            row = self._row(call)
            if isinstance(row, CallFailed):
                answered.append(EngineAnswer(call, row))
                continue
            if row.finish:
                answered.append(EngineAnswer(call, self._answer_body(row)))
                continue
            widest = max(widest, row.width)
            # A sibling waits until the running row's prompt is kept, so that it is read once.
            if row.shares and row.shares in opening:
                later.append(call)
            elif self._rows and not self._has_room(widest):
                later.append(call)
                break  # calls after it must not overtake it
            else:
                opening.add(row.shares)
                self._join(row)
        ready.extendleft(reversed(later))
        return answered

    def _row(self, call: ModelCall) -> Slot | CallFailed:
        row = slot_or_failure(call, self.policy, self._decode)
        if isinstance(row, Slot):
            row.shares = self._shares(row)
        return row

    def _has_room(self, widest: int) -> bool:
        size_bytes = (len(self._rows) + 1) * widest * self._kv.bytes_per_token()
        return size_bytes <= self._max_bytes

    def _shares(self, row: Slot) -> bytes:
        """Return the key under which to keep a long new prompt; empty if it is kept already."""
        if len(row.added) < SHARED:
            return b""
        key = pack_ids(row.tokens[:-1])
        return b"" if self._prefixes.get(key) is not None else key

    def _join(self, row: Slot) -> None:
        self._make_room(len(row.tokens))
        kept = self._kept(row)
        if kept is not None:
            row.fed = kept.shape[1]
            self._kv.load(len(self._rows), kept)
        self._rows.append(row)

    def _make_room(self, joins: int) -> None:
        """Make room for all rows, and for a new one with `joins` tokens."""
        longest = max((len(row.tokens) for row in self._rows), default=0)
        self._kv.grow(len(self._rows) + bool(joins), max(longest, joins))

    def _kept(self, row: Slot) -> Tensor | None:
        """Return the longest kept prefix: the whole prompt, or what the last answer was fed."""
        whole = self._prefixes.get(pack_ids(row.tokens[:-1])) if not row.shares else None
        if whole is None and row.call.prefix_ids:
            return self._prefixes.get(row.call.prefix_ids[:-ID_BYTES])
        return whole

    def _groups(self) -> Iterable[list[int]]:
        """Group rows that lack about as many tokens for one pass; 1 to 4 tokens count as equal."""
        groups: dict[int, list[int]] = {}
        for index, row in enumerate(self._rows):
            missing = min(len(row.tokens) - row.fed, CHUNK)
            groups.setdefault(max(4, 1 << (missing - 1).bit_length()), []).append(index)
        for longest, group in groups.items():
            size = max(1, PASS // longest)
            yield from (group[at : at + size] for at in range(0, len(group), size))

    def _advance(self, group: Sequence[int]) -> None:
        """Feed the rows the tokens that they lack; sample a token for those that then lack none."""
        rows = [self._rows[index] for index in group]
        logits_RV, fed, read_tokens = read_once(self._kv, group, rows)
        self.fed_tokens += read_tokens
        ready = []
        for at, row in enumerate(rows):
            row.fed += fed[at]
            if row.fed == len(row.tokens):
                ready.append(at)
        if not ready:
            return
        if len(ready) < len(rows):
            logits_RV = logits_RV[ready]
            rows = [rows[at] for at in ready]
        for at, row, token, logprob in zip(ready, rows, *self._draw(logits_RV, rows), strict=True):
            row.add(token, logprob, self.version, self.policy.end_ids)
            if row.shares:
                if not row.failure:
                    prompt = self._kv.save(group[at], row.fed - 1)
                    self._prefixes.put(row.shares, prompt, self._extended(row))
                row.shares = b""

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _draw(self, logits_RV: Tensor, rows: Sequence[Slot]) -> tuple[list[int], list[float]]:
        count = len(rows)
        sampling = [row.call.sampling for row in rows]
        seed_R = np.fromiter((row.seed for row in rows), np.uint64, count)
        count_R = np.fromiter((len(row.logprobs) for row in rows), np.uint64, count)
        temperature_R = np.fromiter((s.temperature for s in sampling), np.float32, count)
        top_k_R = np.fromiter((s.top_k for s in sampling), np.int64, count)
        top_p_R = np.fromiter((s.top_p for s in sampling), np.float32, count)
        return draw(
            logits_RV,
            self._tensor(temperature_R),
            self._tensor(top_k_R),
            self._tensor(top_p_R),
            self._tensor(uniforms(seed_R, count_R)),
        )

    def _ended(self) -> list[EngineAnswer]:
        ended = [index for index, row in enumerate(self._rows) if row.finish]
        answers = [self._answer(index) for index in ended]
        # From the end, since a removal moves the last row into the freed place.
        for index in reversed(ended):
            self._remove(index)
        return answers

    def _answer(self, index: int) -> EngineAnswer:
        """Return the answer of a row that has ended; its keys are kept for the next turn."""
        row = self._rows[index]
        if row.failure:
            self._kv.clear(index)  # a masked score of 0 times NaN is NaN
        else:
            self._keep(row, self._kv.save(index, row.fed))
        return EngineAnswer(row.call, self._answer_body(row))

    def _keep(self, row: Slot, kv: Tensor) -> None:
        """Keep the keys of an answer, in place of the shorter prefixes that it extends."""
        prompt = pack_ids(row.tokens[: len(row.tokens) - len(row.logprobs)][:-1])
        shorter = self._extended(row)
        if not shorter:  # siblings of its group may still come
            self._prefixes.demote(prompt)
        self._prefixes.put(
            pack_ids(row.tokens[: row.fed]), kv, (*shorter, prompt) if shorter else ()
        )

    def _extended(self, row: Slot) -> tuple[bytes, ...]:
        """Return the prefix of the previous answer, unless another call begins with it."""
        prefix = row.call.prefix_ids
        running = (other.call for other in self._rows if other is not row)
        if not prefix or any(other.prefix_ids == prefix for other in (*running, *self._waiting)):
            return ()
        return (prefix[:-ID_BYTES],)

    def _answer_body(self, row: Slot) -> ModelAnswered | CallFailed:
        return answer_of(row, self.policy, self._decode, "transformers")

    def _remove(self, index: int) -> None:
        """Take a row out of the batch; the last one fills its place."""
        last = self._rows.pop()
        if index < len(self._rows):
            self._rows[index] = last
            self._kv.move(len(self._rows), index, last.fed)

    def _forget_keys(self) -> None:
        """Drop all keys: those of old weights must not be used for tokens of the new version."""
        self._prefixes.clear()
        for row in self._rows:
            row.fed = 0
            row.shares = b""
