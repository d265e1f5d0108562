"""The default engine: Hugging Face models, one decode step at a time, calls joining and leaving.

Every row of the batch is its tokens and how many of them the model has been fed under the present
weights. A step feeds each row what it lacks and samples one token for each row that lacks nothing
more: prefill, decoding, the next turn of a conversation and the prefill again after new weights
are one and the same thing. Log-probabilities are float32, natural, of the distribution sampled
from (`inference.sampling`); each token carries the version that was in force at its step.

Weights are proven: a version serves only after the canary, scored through the same cache as calls,
agrees with the trainer. Between a failed canary and the next good version nothing is sampled.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine import EngineAnswer
from inference.key_values import BatchKv, PrefixCache
from inference.load_weights import load_into
from inference.policy_dir import Policy, load_policy
from inference.sampling import draw, uniforms
from inference.stream_text import UNFINISHED, Spoken, cut_at
from schemas.errors import WorkFailed
from schemas.foreign_text import raised
from schemas.messages import CallFailed, ModelAnswered, ModelCall, PolicyVersion, Sampling
from schemas.packed import ids_of, logprobs_of, pack_ids, pack_logprobs

TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1.5e-1}
"""How far the canary may be off, in nats; half precision rounds logits of about 10 that far."""

CHUNK = 512
"""A prompt is fed so many tokens a step, so that long ones do not hold up those who decode."""

PASS = 8192
"""Tokens of one forward pass, padding included: bounds the memory of activations."""

SHARED = 64
"""From so many tokens on, a prompt's keys are kept for the siblings that begin with it."""


@dataclass(slots=True)
class _Slot:
    """One call in the batch."""

    call: ModelCall
    tokens: list[int]
    """Prefix, added and sampled."""
    added: list[int]
    limit: int
    """The most tokens to sample."""
    seed: int
    shares: bytes
    """The packed prompt less its last token, when siblings wait for it; else empty."""
    spoken: Spoken | None
    fed: int = 0
    """How many tokens have keys and values under the present weights."""
    finish: str = ""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class TransformersEngine:
    """Serves a policy directory; see `inference.engine.Engine`.

    A `policy` that is loaded already is taken instead of the directory. `max_cache_bytes` bounds
    the keys and values of kept prefixes, and as much again those of the running batch. `threads`
    sets torch's threads for the whole process.
    """

    def __init__(
        self, policy_id: str, directory: str | Path, *, device: str = "cpu", max_batch: int = 128,
        max_cache_bytes: int = 1 << 30, threads: int | None = None, policy: Policy | None = None,
    ) -> None:  # fmt: skip
        if threads is not None:
            torch.set_num_threads(threads)
        self.policy_id = policy_id
        self.version = -1
        self.fed_tokens = 0
        """Tokens that the model has read so far; what the prefix cache saves shows here."""
        self.policy = policy or load_policy(directory, device)
        self._device = torch.device(device)
        self._max_batch, self._max_bytes = max_batch, max_cache_bytes
        self._proven = -1
        self._kv = BatchKv(self.policy.model)
        self._prefixes = PrefixCache(max_cache_bytes)
        self._rows: list[_Slot] = []
        self._waiting: deque[ModelCall] = deque()
        self._held: list[ModelCall] = []
        # Most answers of a small policy are one word of few; decoding one costs 20 us.
        self._decode_short = lru_cache(maxsize=4096)(self._decode)

    def add(self, call: ModelCall) -> None:
        self._waiting.append(call)

    def busy(self) -> bool:
        return self.version >= 0 and bool(self._rows or self._waiting)

    def expire(self, now_ms: int) -> list[ModelCall]:
        late = [c for c in (*self._waiting, *self._held) if c.not_after_ms < now_ms]
        if late:
            self._waiting = deque(c for c in self._waiting if c.not_after_ms >= now_ms)
            self._held = [c for c in self._held if c.not_after_ms >= now_ms]
        return late

    def abort(self, rollout_id: str, attempt: int) -> None:
        def stays(call: ModelCall) -> bool:
            return call.rollout_id != rollout_id or call.attempt > attempt

        self._waiting = deque(filter(stays, self._waiting))
        self._held = list(filter(stays, self._held))
        for index in reversed(range(len(self._rows))):
            if not stays(self._rows[index].call):
                self._remove(index)

    def step(self) -> list[EngineAnswer]:
        if self.version < 0:
            return []
        with torch.inference_mode():
            answers = self._admit()
            for group in self._groups():
                self._advance(group)
            return answers + self._ended()

    def twin(self) -> "TransformersEngine":
        """One with a copy of the model, in memory, and half the room for keys and values."""
        policy = replace(self.policy, model=deepcopy(self.policy.model))
        return TransformersEngine(
            self.policy_id, "", device=str(self._device), max_batch=self._max_batch,
            max_cache_bytes=self._max_bytes // 2, policy=policy,
        )  # fmt: skip

    def adopt(self, version: PolicyVersion) -> None:
        """See the protocol. Raises WorkFailed(`weights`) for tensors that are not this model's
        and WireError for a file that is not what its record promises; both leave the present
        version in service.
        """
        if version.version <= self.version or version.version < self._proven:
            return
        with torch.inference_mode():
            load_into(self.policy.model, self.policy_id, version)
            # The old weights are gone now: nobody is served before the canary has spoken.
            self.version = -1
            self._forget_keys()
            self._prove(version)
        self.version = self._proven = version.version
        self._waiting.extendleft(reversed(self._held))
        self._held.clear()

    def _admit(self) -> list[EngineAnswer]:
        """Let waiting calls into the batch, in order, as far as there is room."""
        failed, later = [], []
        widest = max((len(row.tokens) + row.limit for row in self._rows), default=0)
        opening = {row.shares for row in self._rows if row.shares}
        while self._waiting and len(self._rows) < self._max_batch:
            call = self._waiting.popleft()
            if call.min_policy_version > self.version:
                self._held.append(call)
                continue
            try:
                row = self._row(call)
            except WorkFailed as error:
                failed.append(
                    EngineAnswer(call, CallFailed(error.code, str(error), error.retriable))
                )
                continue
            except Exception as error:  # a chat template is foreign code, and so are its tools
                failed.append(
                    EngineAnswer(call, CallFailed("not_renderable", raised(error), False))
                )
                continue
            widest = max(widest, len(row.tokens) + row.limit)
            if row.shares and row.shares in opening:
                later.append(call)
            elif self._rows and not self._has_room(widest):
                later.append(call)
                break
            else:
                opening.add(row.shares)
                self._join(row)
        self._waiting.extendleft(reversed(later))
        return failed

    def _has_room(self, widest: int) -> bool:
        size_bytes = (len(self._rows) + 1) * widest * self._kv.bytes_per_token()
        return size_bytes <= self._max_bytes

    def _row(self, call: ModelCall) -> _Slot:
        """Render what is new; raises WorkFailed for a call that cannot be served."""
        if call.prefix_ids is None and call.prefix_length:
            msg = f"the prefix of {call.prefix_length} tokens is not held here; send it whole"
            raise WorkFailed("prefix_needed", msg, retriable=True)
        _check_sampling(call.sampling)
        prefix = ids_of(call.prefix_ids or b"").tolist()
        self._check_ids(prefix)
        added = self.policy.template.render(
            call.messages, first=not prefix, tools=call.tools,
            ended=bool(prefix) and prefix[-1] in self.policy.template.end_ids,
        )  # fmt: skip
        tokens = prefix + added
        room = self.policy.context - len(tokens)
        if room < 1:
            msg = (
                f"this model's maximum context length is {self.policy.context} tokens. However, "
                f"your messages resulted in {len(tokens)} tokens."
            )
            raise WorkFailed("too_long", msg, retriable=False)
        if not tokens:
            msg = "neither prefix nor messages gave a token to begin with"
            raise WorkFailed("not_renderable", msg, retriable=False)
        return _Slot(
            call, tokens, added, limit=min(call.sampling.max_tokens, room),
            seed=call.seed & 0xFFFFFFFFFFFFFFFF, shares=self._shares(prefix, tokens),
            spoken=Spoken(self._decode) if any(call.sampling.stop) else None,
        )  # fmt: skip

    def _check_ids(self, prefix: Sequence[int]) -> None:
        size = self.policy.model.config.vocab_size
        if prefix and not 0 <= min(prefix) <= max(prefix) < size:
            msg = (
                f"the prefix holds tokens from {min(prefix)} to {max(prefix)}, but policy "
                f"{self.policy_id!r} has tokens 0 to {size - 1}; was it sampled by another one?"
            )
            raise WorkFailed("bad_prefix", msg, retriable=False)

    def _shares(self, prefix: Sequence[int], tokens: Sequence[int]) -> bytes:
        """The key under which a long fresh prompt is kept, unless it is already."""
        if len(tokens) - len(prefix) < SHARED:
            return b""
        key = pack_ids(tokens[:-1])
        return b"" if self._prefixes.get(key) is not None else key

    def _join(self, row: _Slot) -> None:
        self._kv.grow(len(self._rows) + 1, len(row.tokens))
        kept = self._kept(row)
        if kept is not None:
            row.fed = kept.shape[1]
            self._kv.load(len(self._rows), kept)
        self._rows.append(row)

    def _kept(self, row: _Slot) -> Tensor | None:
        """The longest kept prefix: the whole prompt, or all that was fed for the last answer."""
        whole = self._prefixes.get(pack_ids(row.tokens[:-1])) if not row.shares else None
        if whole is None and row.call.prefix_ids:
            return self._prefixes.get(row.call.prefix_ids[:-4])
        return whole

    def _groups(self) -> Iterable[list[int]]:
        """Rows that lack about as many tokens share a forward pass; up to 4 is about the same."""
        groups: dict[int, list[int]] = {}
        for index, row in enumerate(self._rows):
            lacks = min(len(row.tokens) - row.fed, CHUNK)
            groups.setdefault(max(4, 1 << (lacks - 1).bit_length()), []).append(index)
        for longest, group in groups.items():
            size = max(1, PASS // longest)
            yield from (group[at : at + size] for at in range(0, len(group), size))

    def _advance(self, group: Sequence[int]) -> None:
        """Feed the rows what they lack; sample a token for those that then lack nothing."""
        rows = [self._rows[index] for index in group]
        chunks = [row.tokens[row.fed : row.fed + CHUNK] for row in rows]
        logits_RV = self._kv.forward(group, [row.fed for row in rows], chunks, keep=1)[:, 0]
        ready = []
        for at, (row, chunk) in enumerate(zip(rows, chunks, strict=True)):
            row.fed += len(chunk)
            self.fed_tokens += len(chunk)
            if row.fed == len(row.tokens):
                ready.append(at)
                if row.shares:
                    self._prefixes.put(row.shares, self._kv.save(group[at], row.fed - 1))
                    row.shares = b""
        if not ready:
            return
        if len(ready) < len(rows):
            logits_RV = logits_RV[ready]
            rows = [rows[at] for at in ready]
        for row, token, logprob in zip(rows, *self._draw(logits_RV, rows), strict=True):
            self._take(row, token, logprob)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _draw(self, logits_RV: Tensor, rows: Sequence[_Slot]) -> tuple[list[int], list[float]]:
        count = len(rows)
        sampling = [row.call.sampling for row in rows]
        seed_R = np.fromiter((row.seed for row in rows), np.uint64, count)
        count_R = np.fromiter((len(row.logprobs) for row in rows), np.uint64, count)
        temperature_R = np.fromiter((s.temperature for s in sampling), np.float32, count)
        top_k_R = np.fromiter((s.top_k for s in sampling), np.int64, count)
        top_p_R = np.fromiter((s.top_p for s in sampling), np.float32, count)
        return draw(
            logits_RV, self._tensor(temperature_R), self._tensor(top_k_R), self._tensor(top_p_R),
            self._tensor(uniforms(seed_R, count_R)),
        )  # fmt: skip

    def _take(self, row: _Slot, token: int, logprob: float) -> None:
        """Put a sampled token into its row and see whether that ends it."""
        row.tokens.append(token)
        row.logprobs.append(logprob)
        row.versions.append(self.version)
        if token in self.policy.end_ids or self._says_stop(row, token):
            row.finish = "stop"
        elif len(row.logprobs) >= row.limit:
            row.finish = "length"

    def _says_stop(self, row: _Slot, token: int) -> bool:
        if row.spoken is None:
            return False
        before = len(row.spoken.text)
        row.spoken.push(token)
        return any(
            stop and row.spoken.text.find(stop, max(0, before - len(stop) + 1)) >= 0
            for stop in row.call.sampling.stop
        )

    def _ended(self) -> list[EngineAnswer]:
        ended = [index for index, row in enumerate(self._rows) if row.finish]
        answers = [self._answer(index) for index in ended]
        for index in reversed(ended):
            self._remove(index)
        return answers

    def _answer(self, index: int) -> EngineAnswer:
        """The answer of a row that has ended; what was fed for it is kept for the next turn."""
        row = self._rows[index]
        sampled = row.tokens[len(row.tokens) - len(row.logprobs) :]
        self._prefixes.put(pack_ids(row.tokens[: row.fed]), self._kv.save(index, row.fed))
        body = ModelAnswered(
            text=self._text(row, sampled), added_ids=pack_ids(row.added),
            token_ids=pack_ids(sampled), logprobs=pack_logprobs(row.logprobs),
            versions=pack_ids(row.versions), finish_reason=row.finish,
            policy_id=row.call.policy_id, sequence=row.call.sequence, engine="transformers",
            precision=self.policy.precision, template_digest=self.policy.template.digest,
        )  # fmt: skip
        return EngineAnswer(row.call, body)

    def _text(self, row: _Slot, sampled: Sequence[int]) -> str:
        said = sampled[:-1] if sampled[-1] in self.policy.end_ids else sampled
        decode = self._decode_short if len(said) <= 2 else self._decode
        text = cut_at(decode(tuple(said)), row.call.sampling.stop)
        # A cut answer may end within a character.
        return text.rstrip(UNFINISHED) if row.finish == "length" else text

    def _decode(self, ids: Sequence[int]) -> str:
        return str(
            self.policy.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _remove(self, index: int) -> None:
        """Take a row out of the batch; the last one fills its place."""
        last = self._rows.pop()
        if index < len(self._rows):
            self._rows[index] = last
            self._kv.move(len(self._rows), index, last.fed)

    def _forget_keys(self) -> None:
        """Nothing computed with old weights may meet a token of the new version."""
        self._prefixes.clear()
        for row in self._rows:
            row.fed = 0
            row.shares = b""

    def _prove(self, version: PolicyVersion) -> None:
        """Score the canary and compare; in two parts, so that the cache is proven too."""
        ids, expected = ids_of(version.canary_ids).tolist(), logprobs_of(version.canary_logprobs)
        size = self.policy.model.config.vocab_size
        if not 2 <= len(ids) <= self.policy.context or not 0 <= min(ids) <= max(ids) < size:
            msg = (
                f"the canary of version {version.version} has {len(ids)} tokens; it needs 2 to "
                f"{self.policy.context}, all of them 0 to {size - 1}"
            )
            raise WorkFailed("canary", msg, retriable=False)
        found = self._score(ids)
        off = float(np.abs(found - expected).max())
        # Written so that NaN fails.
        if not off <= TOLERANCE[self.policy.precision]:
            msg = (
                f"the canary of version {version.version} is off by {off:.3g} nats, allowed are "
                f"{TOLERANCE[self.policy.precision]} in {self.policy.precision}; do trainer and "
                "engine have the same config, and was every tensor loaded?"
            )
            raise WorkFailed("canary", msg, retriable=False)

    def _score(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Natural log-probabilities of ids[1:] at temperature 1."""
        kv = BatchKv(self.policy.model, rows=1, columns=len(ids))
        half = len(ids) // 2
        parts = [(0, ids[:half]), (half, ids[half:-1])]
        logits = [
            kv.forward([0], [begin], [part], keep=len(part))[0]
            for begin, part in parts if part
        ]  # fmt: skip
        logprob_TV = torch.cat(logits).float().log_softmax(-1)
        chosen_T1 = self._tensor(np.asarray(ids[1:]))[:, None]
        return np.asarray(logprob_TV.gather(1, chosen_T1)[:, 0].cpu())


def _check_sampling(sampling: Sampling) -> None:
    if (
        sampling.temperature >= 0
        and np.isfinite(sampling.temperature)
        and 0 < sampling.top_p <= 1
        and sampling.top_k >= 0
        and sampling.max_tokens >= 1
    ):
        return
    msg = f"{sampling}; needed are temperature >= 0, 0 < top_p <= 1, top_k >= 0, max_tokens >= 1"
    raise WorkFailed("bad_sampling", msg, retriable=False)
