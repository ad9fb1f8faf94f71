"""Log-probs at chosen positions: hand-computed values, chunks, dtypes, gradients."""

import math

import pytest
import torch
from torch import Tensor

from arl_lightning.functional.logprobs import token_logprobs


def identity(logits_AV: Tensor) -> Tensor:
    return logits_AV


class Head:
    """A linear head that remembers how many positions each call held."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.weight_HV = torch.randn(4, 7, generator=generator).requires_grad_()
        self.calls: list[int] = []

    def __call__(self, hidden_AH: Tensor) -> Tensor:
        self.calls.append(len(hidden_AH))
        return hidden_AH @ self.weight_HV


def positions(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_AH = torch.randn(count, 4, generator=generator).requires_grad_()
    return hidden_AH, torch.randint(7, (count,), generator=generator)


def test_log_prob_and_entropy_by_hand() -> None:
    logits_AV = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]).log() + 3  # a shift changes nothing
    logprobs_A, entropies_A = token_logprobs(logits_AV, torch.tensor([1, 2]), identity)
    assert logprobs_A.tolist() == pytest.approx([math.log(0.25), math.log(0.6)], abs=1e-6)
    # 0.5 ln 2 + 2 · 0.25 ln 4 = 1.5 ln 2;  2 · 0.2 ln 5 + 0.6 ln(5/3)
    assert entropies_A.tolist() == pytest.approx([1.039721, 0.950271], abs=1e-6)


def test_temperature_divides_the_logits() -> None:
    logits_AV = torch.tensor([[0.5, 0.25, 0.25]]).log()
    logprobs_A, entropies_A = token_logprobs(logits_AV, torch.tensor([0]), identity, temperature=0.5)
    # squares 4 : 1 : 1 over 16, so 2/3, 1/6, 1/6; entropy 2/3 ln 1.5 + 1/3 ln 6
    assert logprobs_A.item() == pytest.approx(math.log(2 / 3), abs=1e-6)
    assert entropies_A.item() == pytest.approx(0.867563, abs=1e-6)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 10])
def test_chunks_have_the_values_and_gradients_of_the_whole(chunk_tokens: int) -> None:
    results = []
    for size in (1024, chunk_tokens):
        head, (hidden_AH, targets_A) = Head(), positions(10)
        logprobs_A, entropies_A = token_logprobs(
            hidden_AH, targets_A, head, temperature=0.7, entropy_grad=True, chunk_tokens=size
        )
        weights_A = torch.arange(10.0)
        gradients = torch.autograd.grad((weights_A * (logprobs_A + entropies_A)).sum(), [hidden_AH, head.weight_HV])
        results.append((logprobs_A, entropies_A, *gradients))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-5)


def test_no_more_than_a_chunk_of_logits_exists_and_the_backward_pass_makes_them_again() -> None:
    head, (hidden_AH, targets_A) = Head(), positions(10)
    logprobs_A, _ = token_logprobs(hidden_AH, targets_A, head, chunk_tokens=4)
    assert head.calls == [4, 4, 2]
    torch.autograd.grad(logprobs_A.sum(), hidden_AH)
    assert sorted(head.calls[3:]) == [2, 4, 4]


def test_entropy_carries_gradient_only_when_asked() -> None:
    hidden_AH, targets_A = positions(3)
    assert not token_logprobs(hidden_AH, targets_A, Head())[1].requires_grad
    assert token_logprobs(hidden_AH, targets_A, Head(), entropy_grad=True)[1].requires_grad
    with torch.no_grad():
        assert not token_logprobs(hidden_AH, targets_A, Head(), entropy_grad=True)[1].requires_grad


def test_bfloat16_logits_give_float32_log_probs() -> None:
    logits_AV = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)
    logprobs_A, entropies_A = token_logprobs(logits_AV, torch.tensor([0]), identity)
    assert (logprobs_A.dtype, entropies_A.dtype) == (torch.float32, torch.float32)
    # −ln(1 + e⁻¹) = −0.3132617; bfloat16 would know it as −0.3125 or −0.314453
    assert logprobs_A.item() == pytest.approx(-0.3132617, abs=1e-6)


def test_no_position_gives_no_value() -> None:
    logprobs_A, entropies_A = token_logprobs(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), Head())
    assert logprobs_A.shape == entropies_A.shape == (0,)
