"""One whole single-turn step (sampling, scoring, update) beside that of TRL's GRPOTrainer: seconds and memory.

    python3 -m venv /tmp/trl && /tmp/trl/bin/pip install 'torch==2.13.*' trl gymnasium
    python benchmarks/step_against_trl.py --trl-python /tmp/trl/bin/python --pairs 5 --json

A random Qwen3-architecture model is saved once and loaded by both. Both are given the same prompts, sample equally
many tokens (no stop token can be drawn), cut their rows into equal passes and take one step of AdamW a rollout. Each
half runs in a process of its own; halves take turns, so that a ratio is that of two neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import torch

# The half that runs under TRL's interpreter imports this file too: what only one half has is imported where it is used.

PROMPT_TOKENS, GROUPS, GROUP_SIZE, RESPONSE_TOKENS = 128, 2, 8, 128
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|> ' + m['role'] + ' ' + m['content'] + ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant' }}{% endif %}"
)
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|unk|>")
TEMPLATE_TOKENS = 5  # start, role, end, start, role
LEARNING_RATE = 1e-6
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""`cpu` counts this process's own seconds only: with one thread, nearly the same on a busy machine."""

# the model


def save_model(folder: Path, vocabulary: int, hidden: int = 256, layers: int = 4, context: int = 4096) -> int:
    """A random Qwen3 model that never draws a special token and its tokenizer of words; gives the number of weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    roles = ("system", "user", "assistant")
    names = (*SPECIAL, *roles, *(f"w{i}" for i in range(vocabulary - len(SPECIAL) - len(roles))))
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=SPECIAL[3]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        unk_token=SPECIAL[3],
        extra_special_tokens=[SPECIAL[1]],
        padding_side="left",
        model_max_length=context,
        chat_template=CHAT_TEMPLATE,
    )
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(hidden // 128, 1),
        head_dim=64,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=5 / hidden,  # 0.02 at 256; wider layers add no more to the residual stream
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).float()
    forbid_special(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def forbid_special(model: Any, tokenizer: Any) -> None:
    """No special token is ever drawn from the model: all hidden states share a direction, which theirs opposes."""
    embedding = model.get_input_embeddings().weight
    embedding[:, 0] = 2.0  # the other entries have a spread of 0.02
    special = tokenizer.convert_tokens_to_ids(list(SPECIAL))
    ids = torch.randint(len(SPECIAL), len(embedding), (4, 128))
    ids[:, 0] = special[1]  # as a prompt begins
    shared = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, 1:].mean(dim=(0, 1))
    embedding[special] = -60 * shared / shared.square().sum()
    logits = model(input_ids=ids, use_cache=False).logits[:, 1:]
    gap = (logits.logsumexp(dim=-1) - logits[..., special].amax(dim=-1)).min()
    assert gap > 15, f"a special token has probability exp(-{gap:.1f})"  # 2,000 draws of exp(-15) = 3e-7


# the task


def prompt(seed: int, vocabulary: int) -> str:
    """Words that, inside the chat template, are `PROMPT_TOKENS` tokens."""
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(vocabulary - 10)}" for _ in range(PROMPT_TOKENS - TEMPLATE_TOKENS))


def reward(response: str) -> float:
    """A number that differs among the members of a group."""
    return float(sum(map(ord, response)) % 10)


class Words(gymnasium.Env[str, str]):
    """One turn: words are shown, and any answer is scored by `reward`."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.observation_space = self.action_space = gymnasium.spaces.Text(1_000_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.words = prompt(seed or 0, self.vocabulary)
        return self.words, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", reward(action), True, False, self._info()

    def expert_actions(self) -> tuple[str, ...]:
        return ()

    def _info(self) -> dict[str, Any]:
        base = {"success": False, "state_key": self.words, "admissible_actions": None}
        return base | {"task_type": "words", "action_valid": True}


# what each half measures


class Memory:
    """Resident memory of this process (GB): before training, and the most since then. Linux only."""

    def begin(self, models: Sequence[torch.nn.Module]) -> None:
        for model in models:  # weights that are mapped from a file become resident only when they are read
            for parameter in model.parameters():
                parameter.detach().sum()
        self.before_gb = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten, loading included

    def report(self) -> dict[str, float]:
        peak = _status("VmHWM")
        return {"before_gb": self.before_gb, "peak_gb": peak, "extra_gb": peak - self.before_gb}


def _status(field: str) -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024 / 1e9


class Watch:
    """Marks of our half; see `as_callback`."""

    def __init__(self, clock: str) -> None:
        self.now = CLOCKS[clock]
        self.memory = Memory()
        self.steps: list[dict[str, Any]] = []
        self.turn_ends: list[float] = []
        self.began = self.scored = self.fetched = 0.0
        self.rollout: Any = None

    def as_callback(self) -> Any:
        """The same marks where a Trainer and the play of its data look for them."""
        from lightning.pytorch import Callback

        watch = self

        class Marks(Callback):
            def on_train_start(self, *trainer_and_module: Any) -> None:
                watch.memory.begin([trainer_and_module[1]])
                watch.began = watch.now()

            def rollout_started(self, *_: Any) -> None:
                watch.turn_ends = [watch.now()]

            def rollout_advanced(self, *_: Any) -> None:
                watch.turn_ends.append(watch.now())

            def rollout_finished(self, rollout: Any) -> None:
                watch.rollout, watch.scored = rollout, watch.now()

            def on_train_batch_start(self, *_: Any) -> None:
                watch.fetched = watch.now()

            def on_train_batch_end(self, *_: Any) -> None:
                watch.end_step()

        return Marks()

    def end_step(self) -> None:
        """One record a step, from the end of the one before."""
        now = self.now()
        episodes = [episode for group in self.rollout.groups for episode in group.episodes]
        turns = [turn for episode in episodes for turn in episode.turns]
        sampled = sum(len(turn.completion.token_ids) for turn in turns)
        shown = sum(len(turn.prompt_ids) for turn in turns)
        shared = sum(len(e.turns[0].prompt_ids) for group in self.rollout.groups for e in group.episodes[1:])
        self.steps.append(
            {
                "step_s": now - self.began,
                "rollout_s": self.turn_ends[-1] - self.turn_ends[0],
                "score_s": self.scored - self.turn_ends[-1],
                "update_s": now - self.fetched,
                "turn_s": [end - start for start, end in pairwise(self.turn_ends)],
                "sampled": sampled,
                "row_tokens": shown + sampled,
                "computed": shown + sampled - shared,
            }
        )
        self.began = now

    def report(self) -> dict[str, Any]:
        return {"steps": self.steps, **self.memory.report()}


def fit_ours(
    folder: str,
    task: Any,
    *,
    groups: int,
    group_size: int,
    response_tokens: int,
    pass_tokens: int,
    kl: float,
    steps: int,
    clock: str,
) -> dict[str, Any]:
    """Our half: a Trainer's fit of `steps` epochs, one optimiser step each."""
    from functools import partial

    from lightning.pytorch import Trainer

    from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
    from arl_lightning.modules.agent_module import AgentModule
    from arl_lightning.modules.aggregations import TokenMean
    from arl_lightning.modules.estimators import GroupNormalized
    from arl_lightning.modules.objective import Objective
    from arl_lightning.modules.pretrained import PretrainedModel
    from arl_lightning.modules.regularizers import ReferenceKL
    from arl_lightning.modules.surrogates import TokenClip
    from arl_lightning.types import Decoding

    divergence = ReferenceKL(kl, "k3") if kl else None
    module = AgentModule(
        PretrainedModel(folder),
        Objective(TokenClip(), TokenMean(), GroupNormalized(), kl=divergence),
        optimizer=partial(torch.optim.AdamW, lr=LEARNING_RATE, weight_decay=0.0),
        tokens_per_pass=pass_tokens,
    )
    decoding = Decoding(max_new_tokens=response_tokens)
    data = RolloutDataModule(task, decoding, groups=groups, group_size=group_size, minibatches=1)
    watch = Watch(clock)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=steps,
        reload_dataloaders_every_n_epochs=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch.as_callback()],
    )
    trainer.fit(module, data)
    return watch.report()


def fit_theirs(
    folder: str,
    rows: list[dict[str, Any]],
    *,
    rewards: list[Any],
    group_size: int,
    completion_tokens: int,
    rows_per_pass: int,
    rows_per_step: int,
    kl: float,
    steps: int,
    checkpointing: bool,
    clock: str,
    tokenizer: Any = None,
    tool_rounds: int | None = None,
    **trainer_arguments: Any,
) -> dict[str, Any]:
    """TRL's half: GRPOTrainer with its in-process engine, timed from outside."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    now = CLOCKS[clock]

    class Timed(GRPOTrainer):  # type: ignore[misc]
        """GRPOTrainer with a clock around its own phases."""

        def _generate_single_turn(self, prompt_ids: Any, *a: Any, **k: Any) -> Any:
            result = super()._generate_single_turn(prompt_ids, *a, **k)
            self.spent["computed"] += sum(map(len, prompt_ids)) + sum(map(len, result[0]))
            self.turn_ends.append(now())
            return result

        def _generate(self, *a: Any, **k: Any) -> Any:
            result = super()._generate(*a, **k)
            prompts, completions, tool_mask = result[:3]
            self.spent["rollout_s"] += now() - self.turn_ends[0]
            self.spent["sampled"] += sum(map(sum, tool_mask)) if tool_mask else sum(map(len, completions))
            self.spent["row_tokens"] += sum(map(len, prompts)) + sum(map(len, completions))
            return result

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.turn_ends = [now()]
            result = super()._generate_and_score_completions(inputs)
            self.spent["played_s"] += now() - self.turn_ends[0]
            return result

    class Marks(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            counted = ("sampled", "row_tokens", "computed")
            trainer.spent = dict.fromkeys(("rollout_s", "played_s", *counted), 0)
            memory.begin([model for model in (trainer.model, trainer.ref_model) if model is not None])
            self.began = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended, spent, ends = now(), trainer.spent, trainer.turn_ends
            records.append(
                {
                    "step_s": ended - self.began,
                    "rollout_s": spent["rollout_s"],
                    "score_s": spent["played_s"] - spent["rollout_s"],
                    "update_s": ended - self.began - spent["played_s"],
                    "turn_s": [end - start for start, end in pairwise(ends)],
                    **{name: spent[name] for name in ("sampled", "row_tokens", "computed")},
                }
            )
            trainer.spent = dict.fromkeys(spent, 0)
            self.began = ended

    records: list[dict[str, Any]] = []
    memory = Memory()
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output,
            model_init_kwargs={"dtype": "float32"},
            per_device_train_batch_size=rows_per_pass,
            gradient_accumulation_steps=rows_per_step // rows_per_pass,
            num_generations=group_size,
            max_completion_length=completion_tokens,
            max_tool_calling_iterations=tool_rounds,
            max_steps=steps,
            beta=kl,
            use_bias_correction_kl=False,
            loss_type="bnpo",
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            optim="adamw_torch",
            shuffle_dataset=False,
            gradient_checkpointing=checkpointing,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Timed(
            model=folder,
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer or AutoTokenizer.from_pretrained(folder),
            callbacks=[Marks()],
            **trainer_arguments,
        )
        trainer.train()
    return {"steps": records, **memory.report()}


# pairs


def run_half(python: str, script: str, half: str, settings: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """What the half of `script` under another interpreter prints last."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    command = [python, script, "--half", half, "--settings", json.dumps(settings)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{half} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_pairs(script: str, trl_python: str, settings: Mapping[str, Any], pairs: int, threads: int) -> list[Any]:
    """Neighbouring runs of both halves, first ours, then theirs, then the other way round."""
    pythons = {"ours": sys.executable, "theirs": trl_python}
    found = []
    for number in range(pairs):
        order = list(pythons) if number % 2 == 0 else list(pythons)[::-1]
        found.append({half: run_half(pythons[half], script, half, settings, threads) for half in order})
        shown = " ".join(f"{half} {found[-1][half]['steps'][-1]['step_s']:.2f} s" for half in pythons)
        print(f"pair {number + 1}: {shown} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
    return found


def compare(pairs: Sequence[Any], value: Callable[[Any], float]) -> dict[str, float]:
    """Median of each half, and the ratio theirs / ours of each pair: median, least, most."""
    ours, theirs = ([value(pair[half]) for pair in pairs] for half in ("ours", "theirs"))
    ratios = [t / o for o, t in zip(ours, theirs, strict=True)]
    return {
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def last(name: str) -> Callable[[Any], float]:
    """A figure of the last step; those before it warm up."""
    return lambda half: float(half["steps"][-1][name])


MEASURES: dict[str, Callable[[Any], float]] = {
    "whole step, s": last("step_s"),
    "rollout, s": last("rollout_s"),
    "scoring, s": last("score_s"),
    "update, s": last("update_s"),
    "scoring + update, s": lambda half: last("score_s")(half) + last("update_s")(half),
    "seconds a sampled token": lambda half: last("rollout_s")(half) / last("sampled")(half),
    "tokens computed in play (counted)": last("computed"),
    "resident memory before, GB": lambda half: float(half["before_gb"]),
    "extra resident memory, GB": lambda half: float(half["extra_gb"]),
    "peak resident memory, GB": lambda half: float(half["peak_gb"]),
}


def print_table(title: str, results: Mapping[str, Mapping[str, float]]) -> None:
    print(f"\n{title}\n\n| | ours | TRL | TRL / ours, median | least – most |\n|---|---|---|---|---|")
    for name, row in results.items():
        span = f"{row['least']:.2f} – {row['most']:.2f}"
        print(f"| {name} | {row['ours']:.4g} | {row['theirs']:.4g} | {row['ratio']:.2f} | {span} |", flush=True)


# this script's own


def ours(settings: Mapping[str, Any]) -> dict[str, Any]:
    from arl_lightning.datamodules.conversation import WindowContext
    from arl_lightning.datamodules.prompting import PromptTemplate, WholeMessage
    from arl_lightning.datamodules.task import Task

    gymnasium.register("bench/Words-v0", entry_point=lambda **options: Words(**options))
    options = {"vocabulary": settings["vocabulary"]}
    task = Task("bench/Words-v0", PromptTemplate(), WholeMessage(), WindowContext(0), options, max_turns=1)
    return fit_ours(
        settings["folder"],
        task,
        groups=GROUPS,
        group_size=GROUP_SIZE,
        response_tokens=RESPONSE_TOKENS,
        pass_tokens=settings["rows_per_pass"] * (PROMPT_TOKENS + RESPONSE_TOKENS),
        kl=settings["kl"],
        steps=settings["steps"],
        clock=settings["clock"],
    )


def theirs(settings: Mapping[str, Any]) -> dict[str, Any]:
    words = [prompt(seed, settings["vocabulary"]) for seed in settings["seeds"]]
    return fit_theirs(
        settings["folder"],
        [{"prompt": [{"role": "user", "content": text}]} for text in words],
        rewards=[lambda completions, **_: [reward(completion[0]["content"]) for completion in completions]],
        group_size=GROUP_SIZE,
        completion_tokens=RESPONSE_TOKENS,
        rows_per_pass=settings["rows_per_pass"],
        rows_per_step=GROUPS * GROUP_SIZE,
        kl=settings["kl"],
        steps=settings["steps"],
        clock=settings["clock"],
        checkpointing=settings["trl_checkpointing"],
    )


def task_seeds(steps: int, groups: int) -> list[int]:
    """The seeds that `RolloutDataModule` gives to the tasks of its first epochs."""
    from arl_lightning.functional.seeding import Stream, derive_seed

    return [derive_seed(0, Stream.TRAIN_TASK, epoch, 0, group) for epoch in range(steps) for group in range(groups)]


def check_equal(pairs: Sequence[Any], sampled: int) -> None:
    """Raises unless both halves sampled the tokens that they should, in rows of equal lengths, in every pair."""
    steps = [half["steps"][-1] for pair in pairs for half in pair.values()]
    assert {step["sampled"] for step in steps} == {sampled}, (steps, sampled)
    assert len({step["row_tokens"] for step in steps}) == 1, steps


def parse(description: str, add: Callable[[argparse.ArgumentParser], object]) -> argparse.Namespace:
    """The command line that both comparisons share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="interpreter of an environment with TRL and gymnasium")
    parser.add_argument("--pairs", type=int, default=5, help="paired runs")
    parser.add_argument("--threads", type=int, default=1, help="threads of each half")
    parser.add_argument("--steps", type=int, default=2, help="steps of each run; the last one counts")
    parser.add_argument("--kl", type=float, default=0.04, help="weight of the KL to the reference in both; 0 for none")
    parser.add_argument("--trl-checkpointing", action="store_true", help="TRL's default, which trades time for memory")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="seconds of the wall or of the process")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add(parser)
    parser.add_argument("--half", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.half or options.trl_python):
        parser.error("--trl-python is needed")
    return options


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--vocabularies", type=int, nargs="*", default=[1_000, 151_000])
        parser.add_argument("--rows-per-pass", type=int, default=GROUPS * GROUP_SIZE, help="rows of one forward pass")

    options = parse(__doc__ or "", add)
    if options.half:
        print(json.dumps({"ours": ours, "theirs": theirs}[options.half](options.settings)))
        return
    results: dict[str, Any] = {}
    for vocabulary in options.vocabularies:
        with tempfile.TemporaryDirectory() as folder:
            weights = save_model(Path(folder), vocabulary)
            settings = {
                "folder": folder,
                "vocabulary": vocabulary,
                "rows_per_pass": options.rows_per_pass,
                "kl": options.kl,
                "steps": options.steps,
                "clock": options.clock,
                "seeds": task_seeds(options.steps, GROUPS),
                "trl_checkpointing": options.trl_checkpointing,
            }
            pairs = run_pairs(__file__, options.trl_python, settings, options.pairs, options.threads)
        check_equal(pairs, GROUPS * GROUP_SIZE * RESPONSE_TOKENS)
        results[str(vocabulary)] = {name: compare(pairs, value) for name, value in MEASURES.items()}
        print_table(f"vocabulary {vocabulary:,}, {weights / 1e6:.1f}M weights", results[str(vocabulary)])
    if options.json:
        settled = {name: getattr(options, name) for name in ("kl", "threads", "clock", "pairs", "rows_per_pass")}
        print(json.dumps({**settled, "results": results}))


if __name__ == "__main__":
    main()
