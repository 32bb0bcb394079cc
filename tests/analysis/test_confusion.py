"""Tests confusion matrices against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sklearn

from tff_pfl import analysis
from tff_pfl.output.files import write_parquet

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


def test_labels_that_are_names_are_counted_by_class():
    labels, logits = RNG.integers(0, 2, 40), RNG.normal(size=(40, 3))
    names = ["low", "mid", "high"]  # "high" is no label
    expected = analysis.confusion_matrix(frame(labels, logits), "global", classes=names)
    named = frame(labels, logits).assign(label=pd.Categorical.from_codes(labels, names))
    pd.testing.assert_frame_equal(analysis.confusion_matrix(named, "global"), expected)
    text = named.astype({"label": str})
    found = analysis.confusion_matrix(text, "global", classes=names)
    pd.testing.assert_frame_equal(found, expected)
    for predictions, classes, message in (
        (text, None, "The labels are names. Pass classes=dataset.class_names"),
        (named, sorted(names), "the order of the outputs. Leave classes out"),
        (text, ["low", "middle", "high"], "needs a class of 0 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            analysis.confusion_matrix(predictions, "global", classes=classes)


def test_tokens_are_counted(tmp_path):
    labels, logits = RNG.integers(0, 3, (8, 5)), RNG.normal(size=(8, 5, 3)).astype(np.float32)
    path = tmp_path / "predictions.parquet"
    write_parquet(path, {"label": labels, "global": logits, "global_loss": np.zeros(8)})
    masked = {"label/ids": labels, "label/mask": (labels != 1).astype(int)}
    write_parquet(tmp_path / "masked", {**masked, "global": logits, "global_loss": np.zeros(8)})
    of_file, of_mask = map(pd.read_parquet, (path, tmp_path / "masked"))
    for predictions, options, counts in (
        (frame(labels, logits), {}, labels != 0),
        (of_file, {"padding_id": None}, labels > -1),
        (of_mask, {}, labels != 1),
    ):
        found = analysis.confusion_matrix(predictions, "global", **options)
        expected = sklearn.confusion_matrix(
            labels[counts], logits[counts].argmax(1), labels=range(3)
        )
        np.testing.assert_array_equal(found, expected)


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
