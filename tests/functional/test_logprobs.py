"""Log-probs at chosen positions: hand-computed values, chunks, dtypes, gradients."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from arl_lightning.functional import logprobs as logprobs_module
from arl_lightning.functional.logprobs import linear_logprobs, token_logprobs
from arl_lightning.types import ArlError


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


# linear_logprobs: the same numbers, by tiles


def linear_case(
    positions: int = 7, hidden: int = 5, vocabulary: int = 11, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden_AH = torch.randn(positions, hidden, generator=generator, dtype=torch.float64)
    weight_VH = torch.randn(vocabulary, hidden, generator=generator, dtype=torch.float64) * scale
    bias_V = torch.randn(vocabulary, generator=generator, dtype=torch.float64)
    targets_A = torch.randint(vocabulary, (positions,), generator=generator)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (hidden_AH, weight_VH, bias_V)]
    return leaves[0], targets_A, leaves[1], leaves[2]


def plain(
    hidden_AH: Tensor,
    targets_A: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None = None,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, with all logits at once, in float64."""
    logits_AV = hidden_AH.double() @ weight_VH.double().T
    if bias_V is not None:
        logits_AV = logits_AV + bias_V.double()
    if softcap is not None:
        logits_AV = softcap * torch.tanh(logits_AV / softcap)
    logprobs_AV = torch.log_softmax(logits_AV / temperature, dim=-1)
    return logprobs_AV.gather(1, targets_A[:, None])[:, 0], -(logprobs_AV.exp() * logprobs_AV).sum(-1)


def pulled(outputs: tuple[Tensor, Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a sum in which every position and both outputs have a weight of their own."""
    logprobs_A, entropies_A = outputs
    weights_A = torch.linspace(-1, 2, len(logprobs_A), dtype=logprobs_A.dtype)
    loss = (weights_A * logprobs_A).sum()
    if entropies_A.requires_grad:
        loss = loss + (weights_A.flip(0) * entropies_A).sum()
    return torch.autograd.grad(loss, leaves)


def test_a_linear_head_gives_log_prob_and_entropy_by_hand() -> None:
    # hidden states are the identity, so the weight's columns are the logits: those of the first test, in two blocks
    weight_VH = torch.tensor([[0.5, 0.2], [0.25, 0.2], [0.25, 0.6]]).log() + 3
    logprobs_A, entropies_A = linear_logprobs(torch.eye(2), torch.tensor([1, 2]), weight_VH, vocab_block=2)
    assert logprobs_A.tolist() == pytest.approx([math.log(0.25), math.log(0.6)], abs=1e-6)
    assert entropies_A.tolist() == pytest.approx([1.039721, 0.950271], abs=1e-6)


def test_bias_then_cap_then_temperature_by_hand() -> None:
    logprobs_A, entropies_A = linear_logprobs(
        torch.ones(1, 1),
        torch.tensor([0]),
        torch.tensor([[1.0], [0.0]]),
        torch.tensor([1.0, 0.0]),
        temperature=0.5,
        softcap=2.0,
    )
    # logits 2 and 0, capped 2 tanh 1 = 1.5231883 and 0, over 0.5: x = 3.0463766 and 0; e^-x = 0.0475309;
    # ln p = −ln 1.0475309 = −0.0464358, p = 0.9546258; entropy −ln p + (1 − p) · x = 0.0464358 + 0.1382269
    assert logprobs_A.item() == pytest.approx(-0.0464358, abs=1e-6)
    assert entropies_A.item() == pytest.approx(0.1846627, abs=1e-6)


@pytest.mark.parametrize("positions", [0, 1, 7])
@pytest.mark.parametrize(("chunk_tokens", "vocab_block"), [(1, 1), (3, 4), (7, 11), (100, 100), (2, None)])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_tiles_of_any_size_have_the_values_and_gradients_of_the_definition(
    positions: int, chunk_tokens: int, vocab_block: int | None, entropy_grad: bool
) -> None:
    hidden_AH, targets_A, weight_VH, bias_V = linear_case(positions)
    leaves = [hidden_AH, weight_VH, bias_V]
    logprobs_A, entropies_A = linear_logprobs(
        hidden_AH,
        targets_A,
        weight_VH,
        bias_V,
        temperature=0.7,
        softcap=3.0,
        entropy_grad=entropy_grad,
        chunk_tokens=chunk_tokens,
        vocab_block=vocab_block,
    )
    expected_A, expected_entropies_A = plain(hidden_AH, targets_A, weight_VH, bias_V, temperature=0.7, softcap=3.0)
    torch.testing.assert_close((logprobs_A, entropies_A), (expected_A, expected_entropies_A), rtol=1e-12, atol=1e-12)
    expected = pulled((expected_A, expected_entropies_A if entropy_grad else expected_entropies_A.detach()), leaves)
    torch.testing.assert_close(pulled((logprobs_A, entropies_A), leaves), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("output", [0, 1])
def test_gradients_are_those_of_finite_differences(softcap: float | None, with_bias: bool, output: int) -> None:
    hidden_AH, targets_A, weight_VH, bias_V = linear_case(4, 3, 6)

    def one(hidden_AH: Tensor, weight_VH: Tensor, *bias: Tensor) -> Tensor:
        return linear_logprobs(
            hidden_AH,
            targets_A,
            weight_VH,
            *bias,
            temperature=1.3,
            softcap=softcap,
            entropy_grad=True,
            chunk_tokens=3,
            vocab_block=4,
        )[output]

    assert torch.autograd.gradcheck(one, (hidden_AH, weight_VH, *([bias_V] if with_bias else [])))


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_costs_less_than_a_hundredth_of_a_clip_band(
    dtype: torch.dtype, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not onednn:
        monkeypatch.setattr(logprobs_module, "ONEDNN_IS_FASTER", False)
    # hidden states of size 1 and weights of 5/√256: logits of spread 5, as sharp as a trained model's
    hidden_AH, targets_A, weight_VH, _ = linear_case(64, 256, 3000, dtype, scale=5 / 16)
    # tiles so small that what is summed over them is summed often
    outputs = linear_logprobs(hidden_AH, targets_A, weight_VH, entropy_grad=True, chunk_tokens=4, vocab_block=20)
    assert [output.dtype for output in outputs] == [torch.float32, torch.float32]
    expected = plain(hidden_AH, targets_A, weight_VH)
    for output_A, expected_A in zip(outputs, expected, strict=True):
        assert float((output_A - expected_A).detach().abs().max()) < 2e-5  # SAMPO clips at 3e-3
    gradients = pulled(outputs, [hidden_AH, weight_VH])
    exact = pulled((expected[0], expected[1]), [hidden_AH, weight_VH])
    for gradient, exact_gradient in zip(gradients, exact, strict=True):
        assert gradient.dtype == dtype
        # one rounding to the dtype, and what float32 sums lose
        error = (gradient.double() - exact_gradient.double()).abs().max() / exact_gradient.double().abs().max()
        assert float(error) < torch.finfo(dtype).eps / 2 + 1e-5


def test_hidden_states_and_weights_may_differ_in_dtype() -> None:
    hidden_AH, targets_A, weight_VH, bias_V = linear_case()
    mixed = linear_logprobs(hidden_AH.float(), targets_A, weight_VH.bfloat16(), bias_V.half())
    expected = plain(hidden_AH.float(), targets_A, weight_VH.bfloat16(), bias_V.half())
    torch.testing.assert_close(mixed, (expected[0].float(), expected[1].float()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocab_block", [2, 3, None])
def test_extreme_logits_give_finite_values_and_gradients(vocab_block: int | None) -> None:
    hidden_AH = torch.tensor([[1.0], [-1.0], [1.0], [0.0]], requires_grad=True)
    weight_VH = torch.tensor([[-1e4], [1e4], [0.0], [1e4], [-1e4]], requires_grad=True)
    logprobs_A, entropies_A = linear_logprobs(
        hidden_AH, torch.tensor([1, 1, 0, 2]), weight_VH, entropy_grad=True, vocab_block=vocab_block
    )
    # two equal maxima; the target 2e4 below each of two maxima; the same, other way round; five equal logits
    expected_A = [-math.log(2), -2e4 - math.log(2), -2e4 - math.log(2), -math.log(5)]
    assert logprobs_A.tolist() == pytest.approx(expected_A, rel=1e-6, abs=1e-3)
    assert entropies_A.tolist() == pytest.approx([math.log(2)] * 3 + [math.log(5)], abs=1e-3)
    for gradient in pulled((logprobs_A, entropies_A), [hidden_AH, weight_VH]):
        assert gradient.isfinite().all()


def test_a_target_outside_the_vocabulary_has_log_prob_nan() -> None:
    hidden_AH, _, weight_VH, _ = linear_case(3)
    logprobs_A, entropies_A = linear_logprobs(hidden_AH, torch.tensor([-100, 11, 10]), weight_VH, vocab_block=4)
    assert logprobs_A.isnan().tolist() == [True, True, False]
    assert entropies_A.isfinite().all()


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the largest number of elements of any tensor that an operation gave."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_no_tensor_is_larger_than_a_tile(dtype: torch.dtype, entropy_grad: bool) -> None:
    # 60 · 500 = 30,000 logits; a tile has 16 · 100 = 1,600; the weight, never to be widened as a whole, 500 · 4 = 2,000
    hidden_AH, targets_A, weight_VH, bias_V = linear_case(60, 4, 500, dtype)
    weight_VH.requires_grad_(False)
    with LargestTensor() as forward:
        outputs = linear_logprobs(
            hidden_AH,
            targets_A,
            weight_VH,
            bias_V,
            softcap=5.0,
            temperature=0.9,
            entropy_grad=entropy_grad,
            chunk_tokens=16,
            vocab_block=100,
        )
    assert forward.numel == 1600
    with LargestTensor() as backward:
        pulled(outputs, [hidden_AH])
    assert backward.numel == 1600
    weight_VH.requires_grad_()
    outputs = linear_logprobs(hidden_AH, targets_A, weight_VH, chunk_tokens=16, vocab_block=100)
    with LargestTensor() as trained:
        pulled(outputs, [hidden_AH, weight_VH])
    assert trained.numel == 2000  # the gradient itself


def test_what_is_kept_for_the_backward_pass_does_not_grow_with_the_vocabulary_and_is_nothing_without_gradient() -> None:
    hidden_AH, targets_A, weight_VH, bias_V = linear_case(60, 4, 500)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        linear_logprobs(hidden_AH, targets_A, weight_VH, bias_V, entropy_grad=True)
        # the inputs (60 · 4, 500 · 4, 500, 60), log-normalisers and entropies
        assert kept == [240, 2000, 500, 60, 60, 60]
        kept.clear()
        with torch.no_grad():
            linear_logprobs(hidden_AH, targets_A, weight_VH, bias_V, entropy_grad=True)
        assert kept == []


@pytest.mark.parametrize(("trained", "products"), [(False, 2), (True, 3)])
def test_a_frozen_head_costs_one_product_forward_and_two_backward_a_trained_one_three(
    trained: bool, products: int
) -> None:
    hidden_AH, targets_A, weight_VH, _ = linear_case(60, 4, 500)
    weight_VH.requires_grad_(trained)
    with FlopCounterMode(display=False) as forward:
        logprobs_A, _ = linear_logprobs(hidden_AH, targets_A, weight_VH, chunk_tokens=16, vocab_block=100)
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(logprobs_A.sum())
    # 2 · 60 · 4 · 500 a product
    assert (forward.get_total_flops(), backward.get_total_flops()) == (240_000, products * 240_000)
    assert (weight_VH.grad is not None) == trained


def test_entropy_of_a_linear_head_carries_gradient_only_when_asked() -> None:
    case = linear_case()
    assert not linear_logprobs(*case)[1].requires_grad
    assert linear_logprobs(*case, entropy_grad=True)[1].requires_grad
    with torch.no_grad():
        assert not linear_logprobs(*case, entropy_grad=True)[1].requires_grad


def test_entropy_alone_can_be_differentiated() -> None:
    hidden_AH, targets_A, weight_VH, bias_V = linear_case()
    leaves = [hidden_AH, weight_VH, bias_V]
    ours = linear_logprobs(hidden_AH, targets_A, weight_VH, bias_V, entropy_grad=True)[1].sum()
    theirs = plain(hidden_AH, targets_A, weight_VH, bias_V)[1].sum()
    torch.testing.assert_close(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves))


@pytest.mark.parametrize("onednn", [True, False])
def test_autocast_changes_nothing(onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not onednn:
        monkeypatch.setattr(logprobs_module, "ONEDNN_IS_FASTER", False)
    hidden_AH, targets_A, weight_VH, bias_V = linear_case(dtype=torch.float32)
    leaves = [hidden_AH, weight_VH, bias_V]
    expected = linear_logprobs(hidden_AH, targets_A, weight_VH, bias_V, entropy_grad=True)
    expected_gradients = pulled(expected, leaves)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = linear_logprobs(hidden_AH, targets_A, weight_VH, bias_V, entropy_grad=True)
        gradients = pulled(outputs, leaves)
    torch.testing.assert_close((*outputs, *gradients), (*expected, *expected_gradients), rtol=0, atol=0)


def test_tied_embeddings_under_a_checkpointed_decoder_get_both_gradients() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(11, 5, dtype=torch.float64)
    decoder = nn.Sequential(nn.Linear(5, 5, dtype=torch.float64), nn.Tanh())
    ids_A = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    parameters = [embedding.weight, *decoder.parameters()]
    hidden_AH = checkpoint(decoder, embedding(ids_A), use_reentrant=False)
    ours = pulled(linear_logprobs(hidden_AH, ids_A.roll(-1), embedding.weight, chunk_tokens=3), parameters)
    logprobs_A, entropies_A = plain(decoder(embedding(ids_A)), ids_A.roll(-1), embedding.weight)
    torch.testing.assert_close(ours, pulled((logprobs_A, entropies_A.detach()), parameters))


def test_a_second_derivative_is_refused() -> None:
    hidden_AH, targets_A, weight_VH, _ = linear_case()
    logprobs_A, _ = linear_logprobs(hidden_AH, targets_A, weight_VH)
    with pytest.raises(ArlError, match="without create_graph"):
        torch.autograd.grad(logprobs_A.sum(), hidden_AH, create_graph=True)


def test_packed_weights_are_refused() -> None:
    with pytest.raises(ArlError, match="keep it out of quantisation"):
        linear_logprobs(torch.ones(1, 2), torch.tensor([0]), torch.zeros(8, 1, dtype=torch.uint8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gives_the_values_and_gradients_of_the_definition(dtype: torch.dtype) -> None:
    case = [tensor.detach().cuda() for tensor in linear_case(64, 256, 3000, dtype, scale=5 / 16)]
    hidden_AH, targets_A, weight_VH = case[0].requires_grad_(), case[1], case[2].requires_grad_()
    outputs = linear_logprobs(hidden_AH, targets_A, weight_VH, chunk_tokens=24, vocab_block=700)
    expected = plain(hidden_AH, targets_A, weight_VH)
    for output_A, expected_A in zip(outputs, expected, strict=True):
        assert float((output_A - expected_A).detach().abs().max()) < 3e-5
    gradients = torch.autograd.grad(outputs[0].sum(), [hidden_AH, weight_VH])
    exact = torch.autograd.grad(expected[0].sum(), [hidden_AH, weight_VH])
    for gradient, exact_gradient in zip(gradients, exact, strict=True):
        error = (gradient - exact_gradient).abs().max() / exact_gradient.abs().max()
        assert float(error) < 4 * torch.finfo(dtype).eps + 1e-5
