"""Conversations whose keys and values are kept: the same draws as from nothing, whatever is kept, shared or dropped."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, PretrainedConfig, Qwen3Config

from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.tiny_model import TinyModel, build_tokenizer
from arl_lightning.types import Completion, Decoding, TokenBatch

SIZES: dict[str, Any] = {
    "vocab_size": 104,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
OFTEN = frozenset(range(0, 104, 4))  # about one token in four ends a response


def make(config: PretrainedConfig) -> Policy:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)  # fresh weights give a flat distribution, on which an error would hardly show
    policy = Policy(model.eval(), build_tokenizer((), 512))
    policy.stop_token_ids = OFTEN
    return policy


ARCHITECTURES: dict[str, Callable[[], Policy]] = {
    "qwen3": lambda: make(Qwen3Config(**SIZES)),
    "llama": lambda: make(LlamaConfig(**SIZES)),
    # every second layer sees nine tokens: far fewer than an episode has
    "gemma2": lambda: make(Gemma2Config(**SIZES, sliding_window=9)),
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return ARCHITECTURES[request.param]()


def converse(
    sampler: Sampler,
    turns: int,
    renew: Callable[[], Sampler] | None = None,
    together: Callable[[list[int]], list[list[int]]] = lambda going: [going],
) -> list[list[Completion]]:
    """Six conversations with observations of 1 to 7 tokens, of which one ends early; `renew` forgets everything.

    Two of them share their first prompt, one begins with a single token.
    """
    opening = [7, 8, 9, 10, 11, 12, 13, 14, 15]
    prompts = [[*opening, 20], [*opening, 20], [*opening, 30, 31, 32], [5], opening[:3], [*range(40, 75)]]
    spoken: list[list[Completion]] = [[] for _ in prompts]
    for turn in range(turns):
        going = [row for row in range(len(prompts)) if not (row == 2 and turn > 4)]
        for rows in together(going):
            sampler = renew() if renew is not None else sampler
            seeds = [1000 * row + turn for row in rows]
            for row, completion in zip(rows, sampler.sample(rows, [prompts[row] for row in rows], seeds), strict=True):
                spoken[row].append(completion)
                observation = random.Random(seeds[rows.index(row)]).choices(range(100), k=1 + (3 * row + turn) % 7)
                prompts[row] = [*prompts[row], *completion.token_ids, *observation]
    return spoken


def assert_same(found: list[list[Completion]], expected: list[list[Completion]]) -> None:
    for row, other in zip(found, expected, strict=True):
        assert [c.token_ids for c in row] == [c.token_ids for c in other]
        for one, two in zip(row, other, strict=True):
            assert one.logprobs == pytest.approx(two.logprobs, abs=1e-5)


DECODING = Decoding(max_new_tokens=6)


def test_twelve_turns_from_memory_are_those_computed_from_nothing(policy: Policy) -> None:
    remembered = converse(Sampler(policy, DECODING), 12)
    from_nothing = converse(Sampler(policy, DECODING), 12, renew=lambda: Sampler(policy, DECODING))
    assert_same(remembered, from_nothing)
    assert [len(row) for row in remembered] == [12, 12, 5, 12, 12, 12]
    lengths = {len(completion.token_ids) for row in remembered for completion in row}
    assert {1, 6} <= lengths  # some stop at once, some are cut
    assert len({row[0].token_ids for row in remembered[:2]}) == 2  # one prompt, two seeds


def test_log_probs_from_memory_are_those_of_the_training_forward(policy: Policy) -> None:
    prompts: dict[int, list[int]] = {}

    class Noting(Sampler):
        def sample(
            self, keys: Sequence[int], wholes: Sequence[Sequence[int]], seeds: Sequence[int]
        ) -> list[Completion]:
            prompts.update((key, list(prompt)) for key, prompt in zip(keys, wholes, strict=True))
            return super().sample(keys, wholes, seeds)

    last = [row[-1] for row in converse(Noting(policy, DECODING), 8)]
    for key, completion in enumerate(last):
        ids = [*prompts[key], *completion.token_ids]
        acts_NT = torch.arange(len(ids))[None] >= len(prompts[key])
        batch = TokenBatch(torch.tensor([ids]), torch.tensor([len(ids)]), acts_NT, acts_NT.long() - 1)
        with torch.no_grad():
            logprobs_NT, _ = policy.logprobs(batch)
        assert logprobs_NT[acts_NT].tolist() == pytest.approx(completion.logprobs, abs=1e-5)


def test_what_is_remembered_of_conversations_that_do_not_grow_changes_nothing(policy: Policy) -> None:
    assert_same(converse(Sampler(policy, DECODING, grows=False), 3), converse(Sampler(policy, DECODING), 3))


def test_who_is_sampled_together_and_what_is_forgotten_changes_nothing(policy: Policy) -> None:
    whole = converse(Sampler(policy, DECODING), 6)
    halves = converse(Sampler(policy, DECODING), 6, together=lambda going: [going[::2], going[1::2]])
    assert_same(halves, whole)
    forgetful = Sampler(policy, DECODING, tokens_per_pass=20)
    rng = random.Random(0)

    def some(going: list[int]) -> list[list[int]]:
        forgetful.forget(rng.sample(range(6), 3))
        return [going]

    assert_same(converse(forgetful, 6, together=some), whole)


def fed_tokens(policy: Policy, act: Callable[[], object]) -> list[tuple[int, int]]:
    shapes: list[tuple[int, int]] = []
    decoder = policy.model.get_decoder()  # type: ignore[no-untyped-call]
    hook = decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    act()
    hook.remove()
    return shapes


def qwen3() -> Policy:
    return ARCHITECTURES["qwen3"]()


def test_a_turn_feeds_only_what_is_new() -> None:
    policy = qwen3()
    policy.stop_token_ids = frozenset({10_000})
    sampler = Sampler(policy, Decoding(max_new_tokens=2))
    prompt = list(range(50))
    [first] = sampler.sample([3], [prompt], [0])
    prompt = [*prompt, *first.token_ids, 60, 61, 62]
    shapes = fed_tokens(policy, lambda: sampler.sample([3], [prompt], [1]))
    # the last drawn token and two of the three new ones, then the third, then the first drawn one
    assert shapes == [(1, 3), (1, 1), (1, 1)]


def test_what_all_prompts_begin_with_is_computed_once() -> None:
    policy = qwen3()
    sampler = Sampler(policy, Decoding(max_new_tokens=1), grows=False)
    opening = list(range(30))
    prompts = [[*opening, 50, 51], [*opening, 60, 61], [*opening, 50, 51]]
    assert fed_tokens(policy, lambda: sampler.sample([0, 1, 2], prompts, [0, 1, 2])) == [(1, 30), (2, 1), (3, 1)]
    assert fed_tokens(policy, lambda: sampler.sample([0, 1, 2], prompts, [3, 4, 5])) == [(2, 1), (3, 1)]


def test_a_budget_admits_those_in_front_and_forgets_the_rest() -> None:
    policy = qwen3()
    sampler = Sampler(policy, Decoding(max_new_tokens=10))
    assert sampler.token_bytes == 2 * 2 * 1 * 8 * 4  # keys and values, layers, heads, dimensions, bytes
    sampler.budget_bytes = 100 * sampler.token_bytes
    assert sampler.admit([0, 1, 2], [10, 15, 20]) == 3  # 3 · (20 + 10) = 90
    assert sampler.admit([0, 1, 2], [10, 15, 24]) == 2  # 3 · 34 > 100, and 2 · 25 = 50
    assert sampler.admit([0, 1], [500, 1]) == 1  # one always
    sampler.sample([0, 1], [[1, 2], [1, 3]], [0, 0])
    sampler.admit([0, 1], [90, 90])
    assert set(sampler._remembered) == {0}


def test_memory_is_held_once_and_given_back() -> None:
    policy = qwen3()
    sampler = Sampler(policy, Decoding(max_new_tokens=3))
    sampler.sample([0, 1], [[1, 2], [1, 3, 4]], [0, 0])
    columns = 3 + 3 - 1  # the longest prompt and what was drawn but for the last
    assert sampler.peak_bytes <= 2 * columns * sampler.token_bytes
    assert {key: len(prefix.token_ids) for key, prefix in sampler._remembered.items()} == {
        key: len(prefix.layers[0][0]) for key, prefix in sampler._remembered.items()
    }
    sampler.forget([0, 1])
    assert not sampler._remembered


def test_the_policys_mode_is_left_as_it_was() -> None:
    policy = qwen3()
    policy.train()
    Sampler(policy, DECODING).sample([0], [[1]], [0])
    assert policy.training


def test_one_token_prompts_and_repeated_keys_of_other_prompts_work() -> None:
    policy = Policy(*TinyModel(hidden_size=16, layers=1, heads=1, mlp_size=8, max_context=64).load())
    sampler = Sampler(policy, DECODING)
    sampler.sample([0], [[1, 2, 3]], [0])
    again = sampler.sample([0], [[4]], [0])  # key 0 begins another conversation
    assert again == copy.copy(Sampler(policy, DECODING)).sample([0], [[4]], [0])
