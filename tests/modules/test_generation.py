"""Sampling: the distribution drawn from, the log-probs reported, and what a row may not depend on."""

import copy
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from arl_lightning.functional.drawing import draw
from arl_lightning.functional.seeding import uniforms
from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import ArlError, Completion, Decoding, TokenBatch

POLICY = Policy(*TinyModel(hidden_size=16, layers=2, heads=2, mlp_size=24, max_context=64, seed=1).load())
PROMPTS = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16, 17, 18], [19, 20]]
SEEDS = [11, 22, 33, 44]
NEVER = frozenset({10_000})  # outside of the vocabulary of 104
OFTEN = frozenset(range(0, 104, 4))  # about one token in four


@pytest.fixture(autouse=True, scope="module")
def sharper_head() -> None:
    """Fresh weights give a flat distribution, on which truncation and temperature would hardly show."""
    with torch.no_grad():
        POLICY.model.get_output_embeddings().weight.mul_(10)  # type: ignore[no-untyped-call]


def sample(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding, stops: frozenset[int] = NEVER
) -> list[Completion]:
    policy = copy.copy(POLICY)
    policy.stop_token_ids = stops
    return Sampler(policy, decoding).sample(range(len(prompts)), prompts, seeds)


def draws(
    probabilities: Sequence[float], numbers: Sequence[float], decoding: Decoding
) -> tuple[list[int], list[float]]:
    logits_NV = torch.tensor([probabilities]).log().expand(len(numbers), -1) + 5  # a shift changes nothing
    tokens_N, logprobs_N = draw(logits_NV, torch.tensor(numbers, dtype=torch.float64), decoding)
    return tokens_N.tolist(), logprobs_N.exp().tolist()


@pytest.mark.parametrize(
    ("decoding", "kept"),
    [
        (Decoding(), [0.2, 0.5, 0.3]),
        # squares 0.04, 0.25, 0.09 over 0.38
        (Decoding(temperature=0.5), [4 / 38, 25 / 38, 9 / 38]),
        # 0.5 and 0.3 over 0.8
        (Decoding(top_k=2), [0, 5 / 8, 3 / 8]),
        (Decoding(top_k=1), [0, 1, 0]),
        (Decoding(top_k=3), [0.2, 0.5, 0.3]),
        (Decoding(top_k=99), [0.2, 0.5, 0.3]),
        # 0.5 is below 0.6, so the next one is needed
        (Decoding(top_p=0.6), [0, 5 / 8, 3 / 8]),
        (Decoding(top_p=0.4), [0, 1, 0]),  # the first always stays
        (Decoding(top_p=0.9), [0.2, 0.5, 0.3]),
        # after top-k 5/8 and 3/8: 5/8 alone reaches 0.6
        (Decoding(top_k=2, top_p=0.6), [0, 1, 0]),
        # after the temperature 25/38 alone reaches 0.6
        (Decoding(temperature=0.5, top_p=0.6), [0, 1, 0]),
    ],
)
def test_a_draw_is_where_the_cumulative_probability_passes_the_number(decoding: Decoding, kept: list[float]) -> None:
    numbers = [0.0, *((i + 0.5) / 200 for i in range(200)), 1 - 2**-53]
    tokens, probabilities = draws([0.2, 0.5, 0.3], numbers, decoding)
    assert tokens == [bisect_right(list(accumulate(kept[:2])), number) for number in numbers]
    assert probabilities == pytest.approx([kept[token] for token in tokens], rel=1e-5)


def test_an_impossible_token_is_never_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_NV = 3 * torch.randn(500, 50, generator=generator)
    logits_NV[:, [0, 1, 48, 49]] = -math.inf
    for number in (0.0, 1 - 2**-53):  # the smallest and the largest that a generator gives
        tokens_N, logprobs_N = draw(logits_NV, torch.full((500,), number, dtype=torch.float64), Decoding())
        assert ((tokens_N > 1) & (tokens_N < 48)).all()
        assert logprobs_N.isfinite().all()


@pytest.mark.parametrize("size", [1023, 1024, 1025, 5000])
def test_a_large_vocabulary_is_drawn_from_as_by_one_sum_over_it(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits_NV = 3 * torch.randn(300, size, generator=generator)
    logits_NV[:, -size // 3 :] = -math.inf  # whole blocks of it have nothing to draw
    logits_NV[0], logits_NV[0, size // 2] = -math.inf, 0.0
    numbers_N = torch.rand(300, dtype=torch.float64, generator=generator)
    numbers_N[:3] = torch.tensor([1 - 2**-53, 0.0, 1 - 2**-53])
    tokens_N, logprobs_N = draw(logits_NV, numbers_N, Decoding())
    probabilities_NV = logits_NV.double().softmax(dim=-1)
    expected_N = (probabilities_NV.cumsum(dim=-1) <= numbers_N[:, None]).sum(dim=-1)
    assert torch.equal(tokens_N[3:], expected_N[3:])
    assert (probabilities_NV.gather(1, tokens_N[:, None]) > 0).all()
    expected_A = probabilities_NV.gather(1, tokens_N[:, None])[:, 0].log()
    torch.testing.assert_close(logprobs_N.double(), expected_A, rtol=0, atol=5e-6)
    for row in (0, 7, 299):  # alone as among others
        alone = draw(logits_NV[row : row + 1], numbers_N[row : row + 1], Decoding())
        assert (alone[0].item(), alone[1].item()) == (tokens_N[row].item(), logprobs_N[row].item())


def test_greedy_takes_the_likeliest_with_probability_one() -> None:
    tokens, probabilities = draws([0.2, 0.5, 0.3], [0.01, 0.99], Decoding(temperature=0))
    assert (tokens, probabilities) == ([1, 1], [1.0, 1.0])


def test_log_probs_are_float32_for_bfloat16_logits() -> None:
    logits_NV = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)
    _, logprobs_N = draw(logits_NV, torch.zeros(1, dtype=torch.float64), Decoding())
    assert logprobs_N.dtype == torch.float32
    assert logprobs_N.item() == pytest.approx(-0.3132617, abs=1e-6)  # −ln(1 + e⁻¹)


@torch.no_grad()
def next_probabilities(ids: Sequence[int], temperature: float) -> list[float]:
    logits_V: Tensor = POLICY.model(input_ids=torch.tensor([ids])).logits[0, -1]
    probabilities: list[float] = (logits_V.double() / temperature).softmax(-1).tolist()
    return probabilities


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_those_of_a_loop_without_cache_batch_or_padding(temperature: float) -> None:
    found = sample(PROMPTS, SEEDS, Decoding(temperature=temperature, max_new_tokens=6))
    for prompt, seed, completion in zip(PROMPTS, SEEDS, found, strict=True):
        ids = list(prompt)
        for number in uniforms(seed, 6).tolist():
            ids.append(bisect_right(list(accumulate(next_probabilities(ids, temperature))), number))
        assert completion.token_ids == tuple(ids[len(prompt) :])
    assert len({completion.token_ids for completion in found}) == 4


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_training_forward(temperature: float) -> None:
    completions = sample(PROMPTS, SEEDS, Decoding(temperature=temperature, max_new_tokens=9), OFTEN)
    rows = [[*prompt, *completion.token_ids] for prompt, completion in zip(PROMPTS, completions, strict=True)]
    longest = max(map(len, rows))
    mask_NT = torch.zeros(4, longest, dtype=torch.bool)
    for number, (prompt, row) in enumerate(zip(PROMPTS, rows, strict=True)):
        mask_NT[number, len(prompt) : len(row)] = True
    batch = TokenBatch(
        input_ids_NT=torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
        lengths_N=torch.tensor([len(row) for row in rows]),
        action_mask_NT=mask_NT,
        segment_ids_NT=mask_NT.long() - 1,
        temperature=temperature,
    )
    with torch.no_grad():
        logprobs_NT, _ = POLICY.logprobs(batch)
    sampled_A = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    torch.testing.assert_close(logprobs_NT[mask_NT], sampled_A, rtol=0, atol=1e-5)
    assert sampled_A.min() < -1  # not a certainty whose log-prob is 0 whatever happens


def test_a_row_depends_on_neither_neighbours_nor_padding() -> None:
    decoding = Decoding(max_new_tokens=12)
    together = sample(PROMPTS, SEEDS, decoding, OFTEN)
    reversed_order = sample(PROMPTS[::-1], SEEDS[::-1], decoding, OFTEN)[::-1]
    beside_longer = sample([*PROMPTS, list(range(5, 45))], [*SEEDS, 55], decoding, OFTEN)[:4]
    alone = [
        completion
        for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
        for completion in sample([prompt], [seed], decoding, OFTEN)
    ]
    assert len({len(completion.token_ids) for completion in together}) > 1  # rows leave the batch at different steps
    for others in (reversed_order, beside_longer, alone):
        for one, other in zip(together, others, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_shared_prompt_is_computed_once_and_drawn_from_as_if_alone() -> None:
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[0]]
    fed: list[tuple[int, ...]] = []
    decoder = POLICY.model.get_decoder()  # type: ignore[no-untyped-call]
    hook = decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    together = sample(prompts, SEEDS, Decoding(max_new_tokens=6))
    hook.remove()
    # a probe; all but the last token of the one longer prompt; then six single tokens of each of the four rows
    assert fed == [(1, 2), (1, 3), *[(4, 1)] * 6]
    for prompt, seed, found in zip(prompts, SEEDS, together, strict=True):
        (alone,) = sample([prompt], [seed], Decoding(max_new_tokens=6))
        assert found.token_ids == alone.token_ids
        assert found.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_equal_prompts_with_other_seeds_differ() -> None:
    found = sample([[5, 6]] * 8, range(8), Decoding(max_new_tokens=8))
    assert len({completion.token_ids for completion in found}) == 8


def test_shipped_generation_defaults_are_ignored() -> None:
    decoding = Decoding(max_new_tokens=8)
    before = sample(PROMPTS, SEEDS, decoding)
    config = POLICY.model.generation_config
    assert config is not None
    odd = {
        "do_sample": True,
        "temperature": 0.01,
        "top_k": 1,
        "top_p": 0.01,
        "repetition_penalty": 9.0,
        "max_length": 3,
    }
    shipped = {name: getattr(config, name) for name in odd}
    config.update(**odd)  # type: ignore[no-untyped-call]
    try:
        assert sample(PROMPTS, SEEDS, decoding) == before
    finally:
        config.update(**shipped)  # type: ignore[no-untyped-call]


def test_a_stop_token_ends_its_row_and_belongs_to_it() -> None:
    endless = sample(PROMPTS, SEEDS, Decoding(max_new_tokens=12))
    found = sample(PROMPTS, SEEDS, Decoding(max_new_tokens=12), OFTEN)
    assert any(completion.finished for completion in found)
    for whole, completion in zip(endless, found, strict=True):
        stops = [place for place, token in enumerate(whole.token_ids) if token in OFTEN]
        assert completion.token_ids == whole.token_ids[: stops[0] + 1 if stops else 12]
        assert completion.finished == bool(stops)


def test_a_row_cut_at_the_limit_is_not_finished() -> None:
    for completion in sample(PROMPTS, SEEDS, Decoding(max_new_tokens=5)):
        assert not completion.finished
        assert len(completion.token_ids) == 5


def test_a_stop_token_at_the_limit_finishes_the_row() -> None:
    (whole,) = sample([[5, 6]], [1], Decoding(max_new_tokens=3))
    (found,) = sample([[5, 6]], [1], Decoding(max_new_tokens=3), frozenset({whole.token_ids[2]}))
    assert found.finished


def text_of(completion: Completion) -> str:
    return str(POLICY.tokenizer.decode(list(completion.token_ids)))


def test_a_stop_string_ends_its_row_at_the_token_that_completes_it() -> None:
    whole = sample(PROMPTS, SEEDS, Decoding(max_new_tokens=12))
    texts = [text_of(completion) for completion in whole]
    stop = texts[0][3:6]  # characters are tokens here
    found = sample(PROMPTS, SEEDS, Decoding(max_new_tokens=12, stop_strings=(stop, "never drawn")))
    for completion, text in zip(found, texts, strict=True):
        ends = text.find(stop)
        assert text_of(completion) == (text if ends < 0 else text[: ends + 3])
        assert completion.finished == (ends >= 0)
    assert found[0].token_ids == whole[0].token_ids[:6]
    with pytest.raises(ArlError, match="empty text"):
        Decoding(stop_strings=("",))
