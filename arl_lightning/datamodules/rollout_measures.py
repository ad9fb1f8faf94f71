"""The numbers of a round of play, as sums and counts under their metric names."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from lightning.pytorch.utilities import rank_zero_warn

from arl_lightning.functional.repetition import distinct_ngrams, repeated_tokens
from arl_lightning.types import ArlError, Episode, EpisodeGroup, Measure, StopReason


def measure_episodes(stage: str, episodes: Sequence[Episode]) -> dict[str, Measure]:
    """Rates and means of the episodes under `stage/...`; episodes that ended by an error count only as errors."""
    usable = [episode for episode in episodes if episode.usable]
    turns = [turn for episode in usable for turn in episode.turns]
    completions = [turn.completion for turn in turns]
    measures = {
        "reward": Measure.of([episode.training_return for episode in usable]),
        "score": Measure.of([episode.score for episode in usable]),
        "success_rate": Measure.of([episode.success for episode in usable]),
        "turns": Measure.of([len(episode.turns) for episode in usable]),
        "valid_ratio": Measure.of([turn.valid for turn in turns]),
        "completions/mean_length": Measure.of([len(c.token_ids) for c in completions]),
        "completions/cut_ratio": Measure.of([not c.finished for c in completions]),
        "completions/repeat_ratio": repeated_tokens([c.token_ids for c in completions]),
        "completions/distinct_ratio": distinct_ngrams([c.token_ids for c in completions]),
        "error_ratio": Measure.of([not episode.usable for episode in episodes]),
    }
    types = Counter(episode.task_type for episode in usable if episode.task_type)
    for task_type in types if len(types) > 1 else ():
        chosen = [episode.success for episode in usable if episode.task_type == task_type]
        measures[f"success_rate/{task_type}"] = Measure.of(chosen)
    return {f"{stage}/{name}": measure for name, measure in measures.items()}


def measure_groups(groups: Sequence[EpisodeGroup]) -> dict[str, Measure]:
    """Spread inside groups: what an advantage can be made of."""
    returns_PG = [[episode.training_return for episode in group.usable_episodes] for group in groups]
    spreads = [statistics.stdev(returns) if len(returns) > 1 else 0.0 for returns in returns_PG]
    return {
        "train/reward_std": Measure.of(spreads),
        "train/zero_std_ratio": Measure.of([spread == 0 for spread in spreads]),
    }


def slowest_clock(clocks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The most seconds that any process spent on each thing: the others wait for it."""
    return {what: max(clock[what] for clock in clocks) for what in clocks[0]}


def measure_clock(seconds: Mapping[str, float], tokens: int) -> dict[str, Measure]:
    """Seconds by what they were spent on, and sampled tokens a second of generation."""
    measures = {f"time/{what}_s": Measure(spent, 1) for what, spent in seconds.items()}
    if seconds["generate"] > 0:
        measures["throughput/tokens_per_s"] = Measure(tokens / seconds["generate"], 1)
    return measures


def check_errors(episodes: Sequence[Episode], max_share: float) -> None:
    """Warns of each way in which an environment failed, once with its traceback.

    Raises:
        ArlError: more than `max_share` of the episodes are not usable; it tells the first failure.
    """
    failed = [episode for episode in episodes if not episode.usable]
    for error in dict.fromkeys(episode.error for episode in failed if episode.error):  # equal ones once
        rank_zero_warn(f"an environment failed, and its episode was left out:\n{error}", stacklevel=4)
    if len(failed) > max_share * len(episodes):
        raise ArlError(
            f"{len(failed)} of {len(episodes)} episodes are not usable, more than max_error_share={max_share} allows; "
            f"the first, task seed {failed[0].task_seed}, turn {len(failed[0].turns)}: {why_unusable(failed[0])}"
        )


def why_unusable(episode: Episode) -> str:
    """Why the episode is not usable, in one line."""
    if episode.stop is StopReason.ERROR:
        trace = (episode.error or "").strip().splitlines()
        return trace[-1] if trace else "an error of the environment without a traceback"
    if not episode.turns:
        return (
            "the first prompt and a whole response do not fit the context: lower max_new_tokens or shorten the prompt"
        )
    return "a reward is not finite"
