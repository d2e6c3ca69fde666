"""Losses of forks against values of PyTorch and their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.errors import NetError
from tests.layers.test_fork_references import run

pytestmark = pytest.mark.usefixtures("on_each_engine")

# Sequences of 7, 4 and 3 steps, of which the last is too short for its labels. torch.nn.functional.ctc_loss (2.x) of
# log_softmax(SCORES), blank 0, zero_infinity, and sums of the sizes of the gradients of each sequence.
SCORES = (np.arange(7 * 3 * 5) * 37 % 61 / 12 - 2.5).reshape(7, 3, 5).astype(np.float32)
LABELS, STEPS = [[1, 1, 2], [3, 4], [2, 2, 2]], [7, 4, 3]
TORCH_LOSSES, TORCH_SIZES = [8.835526466, 3.246887922, 0], [7.548768997, 4.040080070, 0]
TORCH_FIRST = [-0.012671518, -0.756746233, 0.029839098, 0.651418686, 0.088159956]  # gradients of the first scores


def of_form(bottoms: int, blank: int) -> list[np.ndarray]:
    """The bottoms of a loss with labels that are shifted where the blank is the last class."""
    scores = SCORES if blank == 0 else np.roll(SCORES, -1, axis=2)
    rows = np.full((3, 4), -1)
    for row, labels in zip(rows, LABELS, strict=True):
        row[: len(labels)] = np.array(labels) - (blank != 0)
    if bottoms == 3:
        marks = np.arange(7)[:, None] % STEPS != 0
        return [scores, marks, rows.T]
    return [scores, np.array(STEPS), np.array([3, 2, 3]), np.maximum(rows.T, 0)]


@pytest.mark.parametrize("kind", ["WarpCTCLoss", "CTCLoss"])
@pytest.mark.parametrize(("bottoms", "blank"), [(3, 0), (3, 4), (4, 0), (4, 4)])
def test_ctc_has_the_numbers_of_pytorch(kind: str, bottoms: int, blank: int) -> None:
    text = f"ctc_loss_param {{ blank_index: {blank} }}" if blank == 0 else ""
    (loss,), (gradient,) = run(kind, text, of_form(bottoms, blank), backward=[0])
    np.testing.assert_allclose(loss, np.sum(TORCH_LOSSES) / 3, rtol=1e-6)
    np.testing.assert_allclose(abs(gradient).sum(axis=(0, 2)), TORCH_SIZES, rtol=1e-5)
    np.testing.assert_allclose(np.roll(gradient[0, 0], blank == 4), TORCH_FIRST, rtol=1e-5)


def test_greedy_decoding_and_wrong_labels() -> None:
    """Of the best classes 0 1 1 2, 1 1 0 1 and 2 2 2 2, the last of which end after two steps."""
    best = np.array([[0, 1, 2], [1, 1, 2], [1, 0, 2], [2, 1, 2]])
    scores = np.eye(3)[best]
    (rows,), _ = run("CTCGreedyDecoder", "", [scores])
    assert rows.shape == (3, 4, 1, 1)
    assert rows[..., 0, 0].tolist() == [[1, 2, -1, -1], [1, 1, -1, -1], [2, -1, -1, -1]]
    labels = np.array([[1, 2, 0, 0], [1, 2, 2, 0], [0, 0, 0, 0]])
    (accuracies,), _ = run("CTCGreedyDecoder", "", [scores, labels])
    np.testing.assert_allclose(accuracies.ravel(), [(1 + 1 / 3 + 0) / 3, 1 / 3], rtol=1e-6)
    marks, text = np.array([[0, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]]), "ctc_decoder_param { blank_index: 0 %s }"
    (rows, mean), _ = run("CTCGreedyDecoder", text % "", [scores, marks, np.array([[1, 1, 2], [2, 1, -1]])], tops=2)
    assert (rows[:, 2, 0, 0].tolist(), mean.item()) == ([2, -1, -1, -1], 1)
    (rows,), _ = run("CTCGreedyDecoder", text % "ctc_merge_repeated: false", [scores, marks])
    assert rows[:, 2, 0, 0].tolist() == [2, 2, -1, -1]
    with pytest.raises(NetError, match=r'layer "it" .*labels up to 9 and 7 steps'):
        run("CtcLoss", "", [SCORES[:, :1], np.array([[9]])])


X = np.float32([[0.5, -1, 2], [1.5, 0.25, -0.5]])
P = np.exp(X, dtype=np.float64) / np.exp(X, dtype=np.float64).sum(axis=1, keepdims=True)
S = 1 / (1 + np.exp(-X, dtype=np.float64))
LABEL, TARGET, SOFT, WEIGHT = [2, 1], [[1, 0, 0], [0, 1, 1]], [[0.2, 0.3, 0.5], [1, 0, 0]], [0.5, 0]
TRUE, BINARY = P[[0, 1], LABEL], np.where(TARGET, S, 1 - S)
ALPHA = np.where(TARGET, 0.25, 0.75)
A = np.arccos(np.float64([0.3, -0.9]))
XX = (X**2).sum(axis=1)
FOCAL, FULL = "focal_loss_param {", "loss_param { normalization: FULL }"
NORMALIZED = "inner_product_param { num_output: 1 normalize: true bias_term: false"
FIRST = SCORES[:, :1]
FORMULAS = [
    ("WarpCTCLoss", "", [FIRST, [[0, 1, 1, 2]]], TORCH_LOSSES[0]),  # blanks and negative numbers are no labels
    ("CtcLoss", "ctc_loss_param { alphabet_size: 5 time_step: 7 }", [FIRST, [[1, -1, 1, 2]]], TORCH_LOSSES[0]),
    ("FocalLoss", "", [X, LABEL], -(0.25 * (1 - TRUE) ** 2 * np.log(TRUE)).mean()),
    ("SoftmaxFocalLoss", f"{FOCAL} type: ONEADDP alpha: 1 }}", [X, LABEL], -((1 + TRUE) ** 2 * np.log(TRUE)).mean()),
    ("FocalLoss", "", [X, TARGET], -(ALPHA * (1 - BINARY) ** 2 * np.log(BINARY)).sum() / 2),
    ("SigmoidFocalLoss", f"{FOCAL} gamma: 0 }}", [X, TARGET], -(ALPHA * np.log(BINARY)).sum() / 2),
    ("SoftmaxWithLoss", "", [X, SOFT], -(SOFT * np.log(P)).sum() / 2),
    ("SoftmaxWithLoss", "", [X, LABEL, WEIGHT], -(WEIGHT * np.log(TRUE)).sum()),  # their sum counts as 1 at least
    ("SoftmaxWithLoss", FULL, [X, SOFT, WEIGHT], -0.25 * (SOFT[0] * np.log(P[0])).sum()),
    ("SigmoidCrossEntropyLoss", "", [X, TARGET, [4, 1]], -(np.log(BINARY) * [[4], [1]]).sum() / 2),
    ("DiceCoefLoss", "", [X, TARGET], 1 - ((2 * (X * TARGET).sum(1) + 1) / (XX + np.sum(TARGET, 1) + 1)).mean()),
    ("DiceCoefLoss", "", [X, LABEL], 1 - ((2 * X[[0, 1], LABEL] + 0.5) / (XX + 1.5)).mean()),
    ("LabelSpecificAdd", "label_specific_add_param { bias: -0.35 }", [[[0.3, 0.5]], [1]], [[0.3, 0.15]]),
    ("CosinAddm", "", [[[0.3], [-0.9]], [0, 0]], [[np.cos(A[0] + 0.5)], [-0.9 - 0.5 * np.sin(0.5)]]),
    ("CombinedMargin", "", [[[0.3], [-0.9]], [0, 0]], np.cos(4 * A + 0.5)[:, None] - 0.35),
    ("LabelSpecificMargin", "label_specific_margin_param { margin_base: 90 gamma: 0 }", [[[0]], [0]], -1),
    ("InnerProduct", f"{NORMALIZED} weight_filler {{ value: 7 }} }}", [[[3, 4]]], [[7 / 2**0.5]]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "bottoms", "expected"), FORMULAS)
def test_formulas(kind: str, text: str, bottoms: list, expected: float) -> None:
    (top,), _ = run(kind, text, [np.array(bottom) for bottom in bottoms], phase="TRAIN")
    np.testing.assert_allclose(top, expected, rtol=2e-6)
