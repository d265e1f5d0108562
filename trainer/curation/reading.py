"""Parts of training samples that a policy cannot read: unknown words, and truncated text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from rollcall.schemas.context_length import positions_used
from rollcall.schemas.messages import Sequence as TokenSequence
from rollcall.schemas.packed import ids_of, mask_of
from rollcall.trainer.curation.left_out import CONTEXT, UNKNOWN, WINDOW
from rollcall.trainer.rules.samples import Sample, mine

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reading:
    """The limits of a policy's input."""

    unknown: int = -1
    """The token id for unknown words; negative: there is none."""
    context: int = 0
    """The number of positions that it reads; 0: not known."""
    window: bool = False
    """True if a sliding window or longrope limits them, and the model has more."""

    def metrics(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Return the number of samples read only in part, by reason; zeros are left out."""
        full = WINDOW if self.window else CONTEXT
        counts = {
            UNKNOWN: sum(map(self._reads_unknown, samples)),
            full: sum(map(self._fills, samples)),
        }
        return {name: float(count) for name, count in counts.items() if count}

    def _reads_unknown(self, sample: Sample) -> bool:
        return self.unknown >= 0 and any(map(self._has_unknown, _ours(sample)))

    def _has_unknown(self, sequence: TokenSequence) -> bool:
        """Return True if the token is in the text read; a sampled one is the policy's choice."""
        read = mask_of(sequence.loss_mask) == 0
        return bool((ids_of(sequence.token_ids)[read] == self.unknown).any())

    def _fills(self, sample: Sample) -> bool:
        return self.context > 0 and any(
            len(each.loss_mask) >= self.context for each in _ours(sample)
        )


def reading_of(directory: Path, config: Any) -> Reading:
    """Read the limits from a policy's directory and configuration; log a shorter window."""
    positions, read = int(getattr(config, "max_position_embeddings", 0)), positions_used(config)
    if 0 < read < positions:
        log.warning("context_ends_at_window", policy=str(directory), positions=positions, read=read)
    return Reading(unknown_token(directory), read if positions else 0, 0 < read < positions)


def unknown_token(directory: Path) -> int:
    """Return the token id for unknown words; -1 if the tokenizer covers all text."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return -1
    held = json.loads(path.read_text())
    model: Mapping[str, Any] = held.get("model") or {}
    if model.get("byte_fallback") or "ByteLevel" in json.dumps(held.get("pre_tokenizer")):
        return -1
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    vocabulary, word = model.get("vocab"), model.get("unk_token")
    known = isinstance(vocabulary, dict) and word in vocabulary
    return int(vocabulary[word]) if known else -1  # type: ignore[index]


def _ours(sample: Sample) -> list[TokenSequence]:
    sequences = sample.scored.trajectory.sequences or ()
    return [each for each in sequences if mine(each, sample.policy_index).any()]
