"""What one update did with the tokens of a few episodes, found again in the rows of its passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from arl_lightning.types import PassRecord, Rollout, Turn

Place = tuple[int, int]
"""Number of the episode in its rollout, and of the turn in its episode."""


@dataclass(frozen=True, slots=True)
class TurnTrace:
    """One turn's part in the loss; all but the first two have one entry a token of the response.

    Attributes:
        minibatch: number of the epoch's mini-batch that held the turn; in the first one all log-ratios are 0.
        advantage: advantage of the turn.
        log_ratios: log π_new − log π_old, nats, just before the mini-batch's step.
        entropies: of the policy then, nats.
        kept: whether the objective's mask left the token in the policy term.
        clipped: whether the surrogate's limit was active.
    """

    minibatch: int
    advantage: float
    log_ratios: tuple[float, ...]
    entropies: tuple[float, ...]
    kept: tuple[bool, ...]
    clipped: tuple[bool, ...]


class TokenTraces:
    """Collects, mini-batch by mini-batch, the traces of chosen episodes of one rollout.

    Turns that no row acts in, such as those of an unusable episode, have none.

    Args:
        rollout: what was played, in the order in which its turns and episodes were numbered.
        chosen: numbers of the episodes to trace.
        sequence: `turn` or `episode`: what a segment of a row is.
    """

    def __init__(self, rollout: Rollout, chosen: Collection[int], sequence: str) -> None:
        self.found: dict[Place, TurnTrace] = {}
        self._turns: dict[Place, Turn] = {}
        self._of_segment: defaultdict[int, list[Place]] = defaultdict(list)
        first_turn = 0
        for number, episode in enumerate(rollout.episodes):
            for k, turn in enumerate(episode.turns):
                if number in chosen:
                    self._turns[number, k] = turn
                    self._of_segment[first_turn + k if sequence == "turn" else number].append((number, k))
            first_turn += len(episode.turns)

    def note(self, record: PassRecord, minibatch: int) -> None:
        """Takes over what the pass says of the chosen episodes."""
        segments_N = record.batch.segment_ids_NT.amax(dim=1).tolist() if len(record.batch) else []
        for row, segment in enumerate(segments_N):
            if segment in self._of_segment:
                self._note_row(record, row, minibatch)

    def _note_row(self, record: PassRecord, row: int, minibatch: int) -> None:
        batch = record.batch
        token_ids, segments = tuple(batch.input_ids_NT[row].tolist()), batch.segment_ids_NT[row].tolist()
        for begin, end in _runs(segments):
            place = self._place(token_ids, begin, end, segments[begin])
            self.found[place] = TurnTrace(
                minibatch=minibatch,
                advantage=float(batch.advantages_NT[row, begin]),
                log_ratios=tuple((record.logprobs_NT - batch.old_logprobs_NT)[row, begin:end].tolist()),
                entropies=tuple(record.entropies_NT[row, begin:end].tolist()),
                kept=tuple(record.keep_NT[row, begin:end].tolist()),
                clipped=tuple(record.clipped_NT[row, begin:end].tolist()),
            )

    def _place(self, token_ids: tuple[int, ...], begin: int, end: int, segment: int) -> Place:
        """The next untraced turn of the segment that has this prompt and response."""
        for place in self._of_segment[segment]:
            turn = self._turns[place]
            prompt, response = turn.prompt_ids, turn.completion.token_ids
            known = token_ids[max(begin - len(prompt), 0) : end]
            if place not in self.found and known == prompt + response:
                return place
        raise ValueError(f"segment {segment} has no turn with the tokens at {begin} to {end} of its row")


def _runs(segments: list[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of the stretches of one segment's tokens, those off the action mask left out."""
    begin = 0
    for end in range(1, len(segments) + 1):
        if end == len(segments) or segments[end] != segments[begin]:
            if segments[begin] >= 0:
                yield begin, end
            begin = end
