"""A teacher: a policy that scores tokens sampled by other policies and samples nothing."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from rollcall.inference.policy_dir import load_policy, load_tokenizer
from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.messages import Sequence
from rollcall.schemas.packed import ids_of, mask_of


class Teacher:
    """A policy directory with its stored weights; at temperature 1."""

    def __init__(self, directory: str | Path, *, threads: int | None = None) -> None:
        """Load the directory. Raises Refused for one that is no policy."""
        if threads is not None:
            torch.set_num_threads(threads)
        self.directory = str(directory)
        self.policy = load_policy(directory)
        self.vocabulary = int(self.policy.model.config.vocab_size)

    def logprobs(self, sequence: Sequence) -> NDArray[np.float32]:
        """Return log p of every sampled token given those before it, nats, [T]; 0 for mask 0.

        Raises WorkFailed for tokens outside its vocabulary, and for more than its context holds.
        """
        ids, sampled = ids_of(sequence.token_ids), mask_of(sequence.loss_mask) == 1
        scores = np.zeros(len(ids), np.float32)
        if not sampled[1:].any():
            return scores
        self._check(ids)
        with torch.inference_mode():
            ids_T = torch.from_numpy(ids.astype(np.int64))
            logits_TV = self.policy.model(input_ids=ids_T[None], use_cache=False).logits[0]
            places = torch.from_numpy(np.flatnonzero(sampled[1:]) + 1)
            log_p_MV = logits_TV[places - 1].float().log_softmax(dim=-1)
            scores[places.numpy()] = log_p_MV.gather(1, ids_T[places][:, None])[:, 0].numpy()
        return scores

    def _check(self, ids: NDArray[np.int32]) -> None:
        if len(ids) > self.policy.context:
            msg = f"{len(ids)} tokens, more than the {self.policy.context} that the teacher reads"
            raise WorkFailed(FailureCode.TOO_LONG, msg, retriable=False)
        if not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            wrong = int(ids[(ids < 0) | (ids >= self.vocabulary)][0])
            msg = f"token {wrong} is none of the teacher's {self.vocabulary}"
            raise WorkFailed(FailureCode.VOCABULARY, msg, retriable=False)


def vocabulary_digest(directory: str | Path) -> str:
    """Return the sha256 of the vocabulary of a policy directory: the token of each id."""
    tokenizer: Any = load_tokenizer(Path(directory))
    words = sorted((number, word) for word, number in tokenizer.get_vocab().items())
    return hashlib.sha256(orjson.dumps(words)).hexdigest()


def require_same_vocabulary(student: str | Path, teacher: str | Path) -> None:
    """Raise Refused if teacher and student have different vocabularies."""
    ours, its = vocabulary_digest(student), vocabulary_digest(teacher)
    if ours != its:
        msg = (
            f"the teacher in {str(teacher)!r} has another vocabulary (digest {its[:12]}) than the "
            f"policy in {str(student)!r} ({ours[:12]}); a teacher scores its student's tokens, so "
            "both need one tokenizer"
        )
        raise Refused(msg)
