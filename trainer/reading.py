"""What a policy cannot read of what it is trained on: unknown words, and what is cut off."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from schemas.context_length import positions_used
from schemas.messages import Sequence as TokenSequence
from schemas.packed import ids_of, mask_of
from trainer.left_out import CONTEXT, UNKNOWN, WINDOW
from trainer.samples import Sample, mine

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a policy reads."""

    unknown: int = -1
    """The token that stands for every word without one; negative: there is none."""
    context: int = 0
    """So many positions it reads; 0: not known."""
    window: bool = False
    """Whether a sliding window or longrope ends them, and the model itself has more."""

    def told(self, samples: Sequence[Sample]) -> dict[str, float]:
        """How many of the samples are read in part, by reason; nothing where all are whole."""
        full = WINDOW if self.window else CONTEXT
        counts = {
            UNKNOWN: sum(map(self._reads_unknown, samples)),
            full: sum(map(self._fills, samples)),
        }
        return {name: float(count) for name, count in counts.items() if count}

    def _reads_unknown(self, sample: Sample) -> bool:
        return self.unknown >= 0 and any(map(self._has_unknown, _ours(sample)))

    def _has_unknown(self, sequence: TokenSequence) -> bool:
        """Among what was read: a policy that samples the token means it."""
        read = mask_of(sequence.loss_mask) == 0
        return bool((ids_of(sequence.token_ids)[read] == self.unknown).any())

    def _fills(self, sample: Sample) -> bool:
        return self.context > 0 and any(
            len(each.loss_mask) >= self.context for each in _ours(sample)
        )


def reading_of(directory: Path, config: Any) -> Reading:
    """Of a policy's directory and its model's configuration; it is said where it ends earlier."""
    positions, read = int(getattr(config, "max_position_embeddings", 0)), positions_used(config)
    if 0 < read < positions:
        log.warning("context_ends_at_window", policy=str(directory), positions=positions, read=read)
    return Reading(unknown_token(directory), read if positions else 0, 0 < read < positions)


def unknown_token(directory: Path) -> int:
    """The token that text becomes for which a policy has none; -1 where all text has tokens."""
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
