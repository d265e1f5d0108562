"""Re-encode another policy's conversations with our own tokenizer and template.

Token ids of another tokenizer mean nothing here, so only text is read. An answer becomes the tokens
that our policy would have sampled for it, with the end token where ours has one; a text does not
show whether it was cut. Source: SAPO, arXiv 2509.08721, §3 (rollouts are re-encoded).
"""

from collections.abc import Sequence as Many
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from rollcall.inference.policy_dir import load_template
from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.messages import Message, Sampling, ScoredTrajectory, Sequence
from rollcall.schemas.packed import mask_of, pack_ids, pack_logprobs

SAID = "assistant"


class Reencoder:
    """A re-encoder of trajectories with the tokenizer and template of a policy directory."""

    def __init__(self, directory: str | Path, policy_id: str, temperature: float = 1.0) -> None:
        """Load the directory; `policy_id` labels the new tokens. Raises Refused for no policy."""
        self.policy_id = policy_id
        self.sampling = Sampling(temperature=temperature)
        self._tokenizer, self._template = load_template(Path(directory))

    def __call__(self, scored: ScoredTrajectory) -> ScoredTrajectory | None:
        """Re-encode a rollout; None unless it is the text of one policy that ours could sample."""
        trajectory = scored.trajectory
        if len(trajectory.policies) != 1 or not trajectory.sequences:
            return None
        told = [self._retold(sequence) for sequence in trajectory.sequences]
        sequences = tuple(each for each in told if each is not None)
        if len(sequences) < len(told):
            return None
        sampled = sum(each.loss_mask.count(1) for each in sequences)
        ours = replace(
            trajectory, policies=(self.policy_id,), sequences=sequences, sampled_tokens=sampled
        )
        return replace(scored, trajectory=ours)

    def _retold(self, sequence: Sequence) -> Sequence | None:
        messages = sequence.messages
        answers = [number for number, each in enumerate(messages) if each.role == SAID]
        spans = sum(is_said for is_said, _ in groupby(mask_of(sequence.loss_mask) == 1))
        # A conversation may begin with answers that were not sampled; they cannot be told apart.
        if len(answers) != spans or any(each.tool_calls for each in messages):
            return None
        ids: list[int] = []
        mask: list[int] = []
        begin = 0
        for answer in answers:
            try:
                added = self._template.render(messages[begin:answer], first=not ids, ended=True)
                said = self._said(messages[answer])
            except WorkFailed:
                return None
            ids += [*added, *said]
            mask += [0] * len(added) + [1] * len(said)
            begin = answer + 1
        return self._sequence(ids, mask, messages) if any(mask) else None

    def _said(self, message: Message) -> list[int]:
        """Return the tokens that our policy would have sampled."""
        try:
            ids = self._tokenizer.encode(
                message.content, add_special_tokens=False, split_special_tokens=True
            )
        except Exception as error:  # the Rust tokenizers raise nothing narrower
            raise WorkFailed(FailureCode.NOT_RENDERABLE, str(error), retriable=False) from error
        return [*ids, *sorted(self._template.end_ids)[:1]]

    def _sequence(self, ids: Many[int], mask: Many[int], messages: tuple[Message, ...]) -> Sequence:
        """Build a sequence without real versions and log-probabilities; the trainer has its own."""
        return Sequence(
            token_ids=pack_ids(ids),
            loss_mask=bytes(mask),
            behaviour_logprobs=pack_logprobs([0.0] * len(ids)),
            versions=pack_ids([each - 1 for each in mask]),
            policy_index=bytes(0 if each else 255 for each in mask),
            messages=messages,
            provenance="missing",
            template_digest=self._template.digest,
            samplings=(self.sampling,),
        )
