"""Linear probe: a teacher whose last layer alone is learned, in seconds.

Multinomial logistic regression on hidden states (scikit-learn's), the usual probe of published
backbones; the strength of its penalty is chosen on validation.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kdlab.data.images import ImageData
from kdlab.models.headless import last_linear
from kdlab.models.model import Normalised
from kdlab.models.with_features import Taps
from kdlab.train.evaluate import in_batches

_MOST = 50_000  # training images
_PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0)  # C of scikit-learn: its inverse
_STEPS = 200
_NEVER = -30.0  # logit of a class without an image


def fit_last_layer(
    model: Normalised,
    data: ImageData,
    device: str,
    batch: int,
    alive: Callable[[], None] = lambda: None,
) -> int:
    """Fit the last layer in place; return the number of training images.

    Args:
        model: with its backbone weights, which stay.
        data: with labels.
        device: for the hidden states.
        batch: images at once.
        alive: called between batches.

    Raises:
        ModelError: its logits do not come from a linear layer.
    """
    from sklearn.linear_model import LogisticRegression

    rows = _labelled(data, data.train)
    if len(rows) > _MOST:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST, replace=False))
    validation = _labelled(data, data.validation)
    name = last_linear(model, torch.from_numpy(data.inputs[rows[:2]]))
    model = model.to(device).eval()
    hidden = _hidden(model, name, data, rows, batch, alive)
    middle, spread = hidden.mean(0), hidden.std(0) + 1e-6
    scaled = (hidden - middle) / spread
    validated = None
    if len(validation):
        states = _hidden(model, name, data, validation, batch, alive)
        validated = (states - middle) / spread, data.labels[validation]
    best, best_score = None, -1.0
    for penalty in _PENALTIES if validated else (0.1,):
        fitted = LogisticRegression(C=penalty, max_iter=_STEPS)
        fitted.fit(scaled, data.labels[rows])
        alive()
        score = 0.0 if validated is None else float(fitted.score(*validated))
        if score > best_score:
            best, best_score = fitted, score
    assert best is not None
    _put_into(model.net.get_submodule(name), best, middle, spread)
    return len(rows)


def _labelled(data: ImageData, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    labelled: NDArray[np.int64] = rows[data.labels[rows] >= 0]
    return labelled


@torch.inference_mode()
def _hidden(
    model: Normalised,
    name: str,
    data: ImageData,
    rows: NDArray[np.int64],
    batch: int,
    alive: Callable[[], None],
) -> NDArray[np.float64]:
    """Compute the (N, D) inputs of the last layer, for unaugmented images."""
    taps, states = Taps(model.net, [f"{name}:input"]), []
    device = next(model.parameters()).device
    for shown in data.shown_ahead(in_batches(rows, batch)):
        model(torch.from_numpy(shown).to(device))
        states.append(taps.take()[0].float().cpu().numpy())
        alive()
    taps.close()
    joined: NDArray[np.float64] = np.concatenate(states).astype(np.float64)
    return joined


@torch.no_grad()
def _put_into(
    layer: nn.Module, fitted: Any, middle: NDArray[np.float64], spread: NDArray[np.float64]
) -> None:
    """Write the regression into the layer, with the z-scores folded into its weights."""
    assert isinstance(layer, nn.Linear)
    coefficients = np.asarray(fitted.coef_)
    intercepts = np.asarray(fitted.intercept_)
    classes = np.asarray(fitted.classes_)
    if len(coefficients) == 1:  # of two classes it has one row, for the second
        coefficients = np.concatenate([-coefficients / 2, coefficients / 2])
        intercepts = np.concatenate([-intercepts / 2, intercepts / 2])
    weights = np.zeros((layer.out_features, layer.in_features))
    biases = np.full(layer.out_features, _NEVER)
    weights[classes] = coefficients / spread
    biases[classes] = intercepts - (coefficients / spread) @ middle
    layer.weight.copy_(torch.from_numpy(weights))
    if layer._parameters["bias"] is None:
        layer.bias = nn.Parameter(torch.zeros(layer.out_features))
    layer.bias.copy_(torch.from_numpy(biases))
