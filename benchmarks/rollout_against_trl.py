"""A whole multi-turn iteration (play, scoring, update) beside that of TRL's GRPOTrainer, turn by turn.

    python3 -m venv /tmp/trl && /tmp/trl/bin/pip install 'torch==2.13.*' trl gymnasium
    python benchmarks/rollout_against_trl.py --trl-python /tmp/trl/bin/python --turns 5 15 --pairs 5 --json
    python benchmarks/rollout_against_trl.py --hidden 1024 --layers 8 --groups 2 --group-size 2 --turns 5 --pairs 3

Both play arl/Sokoban-v0 in the same rooms with the same weights, and hold the same conversation, token for token, but
for the four words that a move can be: TRL through `environment_factory`, its public way to many turns, ours through
`FullContext`. The model is built, not trained, so that it always says a well-formed call (see `save_caller`), and the
rooms take more moves than are played, so that every episode has all its turns.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from halves import fit_ours, fit_theirs, task_seeds
from pairs import MEASURES, check_equal, compare, last, parse, print_table, run_pairs

OPENING, END = "\n", "<|im_end|>"
QUOTED = tuple(f'"{move}"' for move in ("up", "down", "left", "right"))
CALL = ("<tool_call>\n", '{"name": "move", ', '"arguments": ', '{"direction": ', QUOTED, "}}", "\n</tool_call>", END)
"""The pieces of a call, a token each; where there are several, each is as likely."""

TOKENS_OF_CALL = len(CALL)
SYSTEM = "You push every box onto a target, one move at a time. Say your move as a call of the function `move`."
ENV_ID = "arl/Sokoban-v0"
LEAST_MOVES = 10
"""Of an optimal solution with two boxes: that four random directions find one is not to be expected."""

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + ('user' if m['role'] == 'tool' else m['role']) + '\\n' + m['content'] }}"
    "{% if m['tool_calls'] %}{% for call in m['tool_calls'] %}"
    "{{ '<tool_call>\\n' + (call['function'] | tojson) + '\\n</tool_call>' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}

# the model


def pieces(response_tokens: int) -> list[tuple[str, ...]]:
    """What may be said at each token of a response: words before the call, then the call."""
    if response_tokens < TOKENS_OF_CALL:
        raise SystemExit(f"a call alone takes {TOKENS_OF_CALL} tokens")
    thought = [f"word{number} " for number in range(response_tokens - TOKENS_OF_CALL)]
    said = [*thought, *CALL]
    return [(piece,) if isinstance(piece, str) else tuple(piece) for piece in said]


def save_caller(folder: Path, response_tokens: int, vocabulary: int, hidden: int, layers: int, context: int) -> int:
    """A Qwen3 model whose every response is a call, and its tokenizer; gives the number of weights.

    The embedding of a token passes the random layers nearly unchanged, and the head maps it to what may follow it.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from arl_lightning.modules.tiny_model import build_tokenizer

    disable_progress_bar()
    chain = pieces(response_tokens)
    words = [word for step in chain for word in step if word != END]
    tokenizer = build_tokenizer(words, context)
    tokenizer.chat_template = CHAT_TEMPLATE
    config = Qwen3Config(
        vocab_size=max(vocabulary, len(tokenizer)),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(hidden // 128, 1),
        head_dim=64,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.01,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.copy_(torch.randint(2, embedding.shape) * 2.0 - 1)
        before = tokenizer.convert_tokens_to_ids([OPENING])
        for step in chain:
            after = tokenizer.convert_tokens_to_ids(list(step))
            head[after] += 40 / hidden * embedding[before].sum(dim=0)  # about 40 nats above what is not meant
            before = after
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


# the task


def room_options(turns: int) -> dict[str, Any]:
    """Rooms whose episodes last longer than what is played."""
    least = max(LEAST_MOVES, min(turns + 1, 12))
    steps = max(turns, least) + 1
    return {"boxes": 2, "min_walls": 0, "max_walls": 3, "min_solution": least, "max_solution": 60, "max_steps": steps}


class CalledMove:
    """Our parser: the direction of a well-formed call, whatever was said before it."""

    def parse(self, response: str) -> str | None:
        found = re.fullmatch(r"(?:word\d+ )*<tool_call>\n(.*)\n</tool_call>", response)
        called = json.loads(found[1]) if found else {}
        return called["arguments"]["direction"] if called.get("name") == "move" else None

    def write(self, action: str) -> str:
        return f'<tool_call>\n{{"name": "move", "arguments": {{"direction": "{action}"}}}}\n</tool_call>'


def ours(settings: Mapping[str, Any]) -> dict[str, Any]:
    from arl_lightning.datamodules.conversation import FullContext
    from arl_lightning.datamodules.prompting import PromptTemplate
    from arl_lightning.datamodules.task import Task

    turns = settings["turns"]
    prompt = PromptTemplate(system_text=SYSTEM)
    task = Task(ENV_ID, prompt, CalledMove(), FullContext(), room_options(turns), max_turns=turns)
    return fit_ours(
        settings["folder"],
        task,
        groups=settings["groups"],
        group_size=settings["group_size"],
        response_tokens=settings["response_tokens"] + 1,  # one to spare: the stop token must end it
        pass_tokens=settings["rows_per_pass"] * settings["context"],
        kl=settings["kl"],
        steps=settings["steps"],
        clock=settings["clock"],
    )


def theirs(settings: Mapping[str, Any]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from arl_lightning.envs.registration import make_text_env

    turns = settings["turns"]

    class Room:
        """The same environment as TRL wants it: what a tool returns is what the model sees."""

        def __init__(self) -> None:
            self._env = make_text_env(ENV_ID, room_options(turns))

        def reset(self, seed: int, **_: Any) -> str:
            self._return = 0.0
            return self._env.reset(seed=seed)[0]

        def move(self, direction: str) -> str:
            """
            Moves the player.

            Args:
                direction: up, down, left or right.

            Returns:
                The room after the move.
            """
            observation, reward, _, _, _ = self._env.step(direction)
            self._return += float(reward)
            return observation

        def get_reward(self) -> float:
            return self._return

    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ""}]
    tokenizer = AutoTokenizer.from_pretrained(settings["folder"])
    tokenizer.response_template = RESPONSE_TEMPLATE
    return fit_theirs(
        settings["folder"],
        [{"prompt": messages, "seed": seed} for seed in settings["seeds"]],
        rewards=[],
        group_size=settings["group_size"],
        completion_tokens=settings["context"],
        rows_per_pass=settings["rows_per_pass"],
        rows_per_step=settings["groups"] * settings["group_size"],
        kl=settings["kl"],
        steps=settings["steps"],
        clock=settings["clock"],
        checkpointing=settings["trl_checkpointing"],
        tokenizer=tokenizer,
        tool_rounds=turns - 1,  # the last call is answered by nobody
        environment_factory=Room,
    )


def by_turn(pairs: Sequence[Any], turn: int) -> dict[str, float]:
    """Seconds from the end of one turn's generation to the end of this one's, environments and templates included."""
    return compare(pairs, lambda half: half["steps"][-1]["turn_s"][turn - 1])


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--turns", type=int, nargs="*", default=[5, 15], help="turns of every episode")
        parser.add_argument("--groups", type=int, default=4, help="rooms of a rollout")
        parser.add_argument("--group-size", type=int, default=4, help="episodes of a room")
        parser.add_argument("--response-tokens", type=int, default=20, help=f"tokens of a response, {TOKENS_OF_CALL}+")
        parser.add_argument("--rows-per-pass", type=int, default=4, help="rows of a forward pass in scoring and update")
        parser.add_argument("--vocabulary", type=int, default=1_000)
        parser.add_argument("--hidden", type=int, default=256, help="width, a multiple of 128")
        parser.add_argument("--layers", type=int, default=4)

    options = parse(__doc__ or "", add)
    if options.half:
        print(json.dumps({"ours": ours, "theirs": theirs}[options.half](options.settings)))
        return
    results: dict[str, Any] = {}
    for turns in options.turns:
        context = 256 + turns * (options.response_tokens + 64)  # a room and what stands around it take some 50
        with tempfile.TemporaryDirectory() as folder:
            weights = save_caller(
                Path(folder), options.response_tokens, options.vocabulary, options.hidden, options.layers, context
            )
            names = (
                "groups",
                "group_size",
                "response_tokens",
                "rows_per_pass",
                "kl",
                "steps",
                "clock",
                "trl_checkpointing",
            )
            settings = {name: getattr(options, name) for name in names} | {
                "folder": folder,
                "turns": turns,
                "context": context,
                "seeds": task_seeds(options.steps, options.groups),
            }
            pairs = run_pairs(__file__, options.trl_python, settings, options.pairs, options.threads)
        episodes = options.groups * options.group_size
        check_equal(pairs, episodes * turns * options.response_tokens)
        table = {name: compare(pairs, value) for name, value in MEASURES.items()}
        shown = [turn for turn in (1, 2, 5, 10, 15, 20, 30) if turn <= turns]
        table |= {f"turn {turn}, s": by_turn(pairs, turn) for turn in shown}
        results[str(turns)] = table
        length = last("row_tokens")(pairs[0]["ours"]) / episodes
        print_table(
            f"{turns} turns, {episodes} episodes of {length:.0f} tokens, {weights / 1e6:.1f}M weights, "
            f"vocabulary {options.vocabulary:,}",
            table,
        )
    if options.json:
        settled = {
            name: getattr(options, name)
            for name in ("hidden", "layers", "vocabulary", "kl", "threads", "clock", "pairs", "rows_per_pass")
        }
        print(json.dumps({**settled, "results": results}))


if __name__ == "__main__":
    main()
