"""Tests the names of metrics as values and as text."""

import itertools

from tests.marks import together
from tff_pfl.arguments.quantities import BY_NAME, known_direction
from tff_pfl.evaluation import MARGIN, STATISTICS, MetricName, from_text, main_metric, to_text

NONFINITE = "personalized/local_test/num_nonfinite"


@together(
    ("name", "text"),
    [
        (MetricName("global", "local_test", "loss", "mean"), "global/local_test/loss_mean"),
        (MetricName("personalized", "local_test", "num_nonfinite"), NONFINITE),
        (MetricName("", "", "num_clients_never_selected"), "num_clients_never_selected"),
        (MetricName("", "", "train/loss"), "train/loss"),
        (MetricName("", "", "mix/aggregator/clip_mean"), "mix/aggregator/clip_mean"),
    ],
)
def test_str_and_parse_are_inverse(name, text):
    assert str(name) == f"{name}" == text
    assert MetricName.parse(text) == name


def test_from_text_inverts_to_text():
    models = ("personalized", "global")
    pools = ("local_test", "synthetic12.5_validation")
    quantities = ("accuracy", "top_5_accuracy", "a_mean", "std", "per/class", "mean_5_percent")
    names = [MetricName(*parts) for parts in itertools.product(models, pools, quantities)]
    names = [
        name._replace(statistic=statistic) for name in names for statistic in (*STATISTICS, MARGIN)
    ]
    metrics = {name: float(number) for number, name in enumerate(names)}
    text = to_text(metrics)
    assert len(set(text)) == len(names)
    assert from_text(text) == metrics


def test_direction_follows_from_the_name():
    less = "loss num_nonfinite mse angle_error cross_entropy top_5_error_rate"
    more = "accuracy iou lossless learning_rate terror"
    for names, better in ((f"{less} sparse_categorical_crossentropy", -1), (more, 1)):
        assert {BY_NAME[name].better for name in names.split()} == {better}


def test_well_known_names_have_a_direction_and_others_have_none():
    less = "mape logloss huber brier hinge squared_hinge logcosh poisson kl_divergence MAE mse_1 "
    less += "false_positives error_in_degrees negative_log_likelihood"
    more = "auc f1_macro recall_at_5 top_5_accuracy accuracy_no_oov num_tokens log_likelihood"
    unknown = "within_half score terror mae_x neg_mean_squared_error"
    for names, expected in ((less, -1), (more, 1), (unknown, None)):
        assert {name: known_direction(name) for name in names.split()} == dict.fromkeys(
            names.split(), expected
        )


def test_main_metric_is_the_first_of_the_task_of_own_models():
    def name(model, quantity, statistic="mean"):
        return MetricName(model, "local_test", quantity, statistic)

    names = [MetricName("", "", "train/loss"), name("global", "loss"), name("global", "f1")]
    names += [name("personalized", "loss"), name("personalized", "num_tokens")]
    assert main_metric(names) == name("personalized", "loss")
    names += [name("personalized", "mae", "std"), name("personalized", "r2"), names[2]]
    assert main_metric(names) == name("personalized", "r2")
    assert main_metric(names[:3]) == name("global", "f1")
    assert main_metric(names[:1]) is None
