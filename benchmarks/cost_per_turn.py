"""Seconds that a turn takes as conversations grow: a sampler that remembers, against encoding everything anew.

    python benchmarks/cost_per_turn.py --json

Conversations as `FullContext` makes them: each turn appends an observation and asks for a response, both of constant
length. One `Sampler` plays all turns; at some of them a new one, which remembers nothing, is given the same prompts and
seeds right after it, and must draw the same tokens. Each session is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pairs import CLOCKS, run_half
from word_model import save_model

VOCABULARY, FIRST_PROMPT, OBSERVATION, RESPONSE, SMOOTH = 1_000, 120, 60, 20, 3
"""`SMOOTH` turns up to and including a turn are what the ratio takes the median of."""


def play(settings: Mapping[str, Any]) -> dict[str, Any]:
    """One session: seconds of every turn with memory and of some without, and whether both drew the same."""
    from arl_lightning.modules.generation import Sampler
    from arl_lightning.modules.policy import Policy
    from arl_lightning.modules.pretrained import PretrainedModel
    from arl_lightning.types import Completion, Decoding

    policy = Policy(*PretrainedModel(settings["folder"]).load())
    decoding = Decoding(max_new_tokens=RESPONSE)
    rng, now = random.Random(0), CLOCKS[settings["clock"]]
    keys = range(settings["rows"])

    def words(count: int) -> list[int]:
        return [rng.randrange(10, VOCABULARY) for _ in range(count)]

    def sample(sampler: Sampler, turn: int) -> tuple[list[Completion], float]:
        started = now()
        drawn = sampler.sample(keys, prompts, [turn * len(keys) + key for key in keys])
        return drawn, now() - started

    sampler = Sampler(policy, decoding)
    prompts = [words(FIRST_PROMPT) for _ in keys]
    sample(Sampler(policy, decoding), 0)  # warms up
    remembering_s, anew_s, same, tokens, worst_nats = [], {}, 0, 0, 0.0
    for turn in range(1, settings["turns"] + 1):
        drawn, seconds = sample(sampler, turn)
        remembering_s.append(seconds)
        if turn in settings["anew_at"]:
            again, anew_s[turn] = sample(Sampler(policy, decoding), turn)
            for a, b in zip(drawn, again, strict=True):
                same += sum(x == y for x, y in zip(a.token_ids, b.token_ids, strict=True))
                tokens += len(a.token_ids)
                worst_nats = max(worst_nats, *(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)))
        prompts = [
            [*prompt, *completion.token_ids, *words(OBSERVATION)]
            for prompt, completion in zip(prompts, drawn, strict=True)
        ]
    text = policy.model.config
    return {
        "remembering_s": remembering_s,
        "anew_s": anew_s,
        "same_tokens": same / tokens,
        "worst_nats": worst_nats,
        "token_bytes": sampler.token_bytes,
        "layers": text.num_hidden_layers,
        "queries": text.num_attention_heads * text.head_dim,
    }


def expected(turn: int, rows: int, weights: int, session: Mapping[str, Any]) -> tuple[float, float, float]:
    """FLOPs of the turn with memory and anew, and the bytes that decoding must read, by counting.

    A token costs two FLOPs a weight, and in each layer four a query width and token that it looks back on; a decoding
    step reads all weights once, and the keys and values of every row.
    """
    start = FIRST_PROMPT + (turn - 1) * (OBSERVATION + RESPONSE)
    end = start + RESPONSE

    def cost(first: int, last: int) -> float:
        looked_back = (last * (last + 1) - first * (first + 1)) / 2
        return rows * (2.0 * weights * (last - first) + 4.0 * session["layers"] * session["queries"] * looked_back)

    known = start - OBSERVATION - 1 if turn > 1 else 0  # the token drawn last was never fed
    read = sum(4 * weights + rows * length * session["token_bytes"] for length in range(start, end))
    return cost(known, end), cost(0, end), float(read)


def smoothed(seconds: Sequence[float], turn: int) -> float:
    return statistics.median(seconds[max(turn - SMOOTH, 0) : turn])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rows", type=int, default=4, help="conversations side by side")
    parser.add_argument("--hidden", type=int, default=512, help="width, a multiple of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument(
        "--anew-at", type=int, nargs="*", default=[5, 10, 20, 30, 40, 50], help="turns encoded anew too"
    )
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="seconds of the wall or of the process")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--half", help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.half:
        print(json.dumps(play(options.settings)))
        return
    context = FIRST_PROMPT + options.turns * (OBSERVATION + RESPONSE)
    anew_at = sorted(
        {*(turn for turn in options.anew_at if turn <= options.turns), min(5, options.turns), options.turns}
    )
    with tempfile.TemporaryDirectory() as folder:
        weights = save_model(Path(folder), VOCABULARY, options.hidden, options.layers, context)
        settings = {"folder": folder, "rows": options.rows, "turns": options.turns, "anew_at": anew_at} | {
            "clock": options.clock
        }
        sessions = [
            run_half(sys.executable, __file__, "play", settings, options.threads) for _ in range(options.sessions)
        ]
    found = report(sessions, anew_at, options.rows, weights)
    if options.json:
        print(
            json.dumps(
                {"weights": weights, "rows": options.rows, "threads": options.threads, "clock": options.clock, **found}
            )
        )


def report(sessions: Sequence[Mapping[str, Any]], turns: Sequence[int], rows: int, weights: int) -> dict[str, Any]:
    """Prints the table and the growth from the first to the last of `turns`, and gives them back."""
    first, last = turns[0], turns[-1]
    one = sessions[0]
    base = expected(first, rows, weights, one)
    print(
        f"{weights / 1e6:.1f}M weights, {rows} conversations, {one['token_bytes'] / 1e3:.1f} kB a token; medians of "
        f"{len(sessions)} sessions\n\n| turn | tokens before | with memory, s | anew, s | anew / memory | FLOPs with "
        f"memory, turn {first} = 1 | bytes read | FLOPs anew |\n" + "|---" * 8 + "|"
    )
    table = {}
    for turn in turns:
        memory_s = statistics.median(smoothed(session["remembering_s"], turn) for session in sessions)
        anew_s = statistics.median(session["anew_s"][str(turn)] for session in sessions)
        counted = [now / then for now, then in zip(expected(turn, rows, weights, one), base, strict=True)]
        before = FIRST_PROMPT + (turn - 1) * (OBSERVATION + RESPONSE)
        table[str(turn)] = {"memory_s": memory_s, "anew_s": anew_s, "flops": counted[0], "bytes": counted[2]}
        shown = f"{memory_s:.3f} | {anew_s:.3f} | {anew_s / memory_s:.1f}"
        print(f"| {turn} | {before} | {shown} | {counted[0]:.2f} | {counted[2]:.2f} | {counted[1]:.2f} |")
    growth = {
        "memory": [smoothed(s["remembering_s"], last) / smoothed(s["remembering_s"], first) for s in sessions],
        "anew": [s["anew_s"][str(last)] / s["anew_s"][str(first)] for s in sessions],
    }
    for name, ratios in growth.items():
        span = f"{min(ratios):.2f} – {max(ratios):.2f}"
        print(f"turn {last} / turn {first}, {name}: {statistics.median(ratios):.2f} ({span})")
    same, worst = min(s["same_tokens"] for s in sessions), max(s["worst_nats"] for s in sessions)
    print(f"same tokens drawn: {same:.4f}; largest difference of a log-prob {worst:.1e} nats", flush=True)
    return {"turns": table, "growth": growth, "same_tokens": same, "worst_nats": worst}


if __name__ == "__main__":
    main()
