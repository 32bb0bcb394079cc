"""Tests confusion matrices against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sklearn

from tff_pfl import analysis

RNG = np.random.default_rng(0)


def frame(labels, outputs):
    columns = {"label": list(labels), "global": list(outputs), "global_loss": 0.0}
    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("labels", "outputs", "predicted"),
    [
        (RNG.integers(0, 3, 40), logits := RNG.normal(size=(40, 4)), logits.argmax(1)),
        (RNG.integers(0, 2, 40), logit := RNG.normal(size=(40, 1)), logit[:, 0] > 0),
        (RNG.integers(0, 2, 40).astype(float), logit[:, 0], logit[:, 0] > 0),
    ],
)
def test_counts_equal_scikit_learn(labels, outputs, predicted):
    found = analysis.confusion_matrix(frame(labels, outputs), "global")
    expected = sklearn.confusion_matrix(labels, predicted, labels=range(len(found)))
    np.testing.assert_array_equal(found, expected)
    axes = analysis.plot_confusion_matrix(found).axes[0]
    assert [int(text.get_text()) for text in axes.texts] == expected.ravel().tolist()


def test_outputs_that_are_not_finite_predict_nothing():
    predictions = frame([0, 1], [[np.nan, np.nan], [0.0, 1.0]])
    found = analysis.confusion_matrix(predictions, "global", classes=["cat", "dog"])
    assert found.loc["cat"].to_dict() == {"cat": 0, "dog": 0, "nothing": 1}
    assert found.loc["dog", "dog"] == 1


def test_predictions_that_are_no_classes_are_refused():
    for labels, outputs in (([0.5], [[0.1]]), ([[1, 0]], [[0.1, 0.2]]), ([2], [[0.1, 0.2]])):
        with pytest.raises(ValueError, match="needs a class of 0 to 1 for each example"):
            analysis.confusion_matrix(frame(labels, outputs), "global")
    with pytest.raises(ValueError, match="Unknown model 'personalized'. Valid: 'global'"):
        analysis.confusion_matrix(frame([0], [[0.1, 0.2]]))
