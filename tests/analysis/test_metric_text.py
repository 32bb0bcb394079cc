"""Tests the descriptions of metrics in words."""

import itertools

from tff_pfl.analysis.metric_text import in_short, in_words
from tff_pfl.evaluation import MARGIN, STATISTICS, MetricName

NAMES = [
    (
        "personalized/local_test/accuracy",
        "accuracy of each client's own model on its own test examples",
        "personalized",
    ),
    (
        "global/local_validation/loss_mean",
        "loss of the global model on each client's own validation examples, mean over clients",
        "global, loss, local validation",
    ),
    (
        "personalized/generalization_test/accuracy_worst_5_percent",
        "accuracy of each client's own model on the test examples of all clients, mean of the "
        "lowest 5 % of clients",
        "personalized, generalization test, lowest 5 %",
    ),
    (
        "personalized/local_test/mse_worst_5_percent",
        "mse of each client's own model on its own test examples, mean of the top 5 % of clients",
        "personalized, mse, top 5 %",
    ),
    (
        "personalized/synthetic12.5_test/accuracy_std",
        "accuracy of each client's own model on its own test examples and those of 12.5 % of "
        "the other clients, standard deviation over clients",
        "personalized, synthetic12.5 test, standard deviation",
    ),
    (
        "global/synthetic50_test/top_5_accuracy_best_5_percent",
        "top 5 accuracy of the global model on the test examples of each client and of 50 % "
        "of the others, mean of the top 5 % of clients",
        "global, top 5 accuracy, synthetic50 test, top 5 %",
    ),
    (
        "fine_tuned/new_clients_test/accuracy_mean",
        "accuracy of each new client's fine-tuned model on its own test examples, mean over "
        "clients",
        "fine tuned, new clients test",
    ),
    (
        "locally_trained/local_test/accuracy",
        "accuracy of each client's locally trained global model on its own test examples",
        "locally trained",
    ),
    (
        "fine_tuned/generalization_test/accuracy",
        "accuracy of each client's fine-tuned model on the test examples of all clients",
        "fine tuned, generalization test",
    ),
    (
        "global/new_clients_test/accuracy",
        "accuracy of the global model on each new client's own test examples",
        "global, new clients test",
    ),
    (
        "personalized/local_test/num_nonfinite",
        "number of clients with a loss that is not finite, of each client's own model on its "
        "own test examples",
        "personalized, num nonfinite",
    ),
    (
        "num_clients_never_selected",
        "clients never selected",
        "num clients never selected",
    ),
    (
        "teacher/moon_test/accuracy",
        "accuracy of each client's teacher model on moon test",
        None,
    ),
]


def test_metrics_have_words_and_a_short_head():
    for text, words, short in NAMES:
        name = MetricName.parse(text)
        assert in_words(name) == words
        assert short is None or in_short(name) == short


def test_words_are_unique_and_without_underscores():
    names = [
        MetricName(*parts)
        for pools, models in (
            (
                ("local", "generalization", "synthetic0", "synthetic50"),
                ("personalized", "locally_trained", "fine_tuned", "global"),
            ),
            (
                ("new_clients",),
                ("locally_trained", "fine_tuned", "global"),
            ),
        )
        for parts in itertools.product(
            models,
            [f"{pool}_{split}" for pool in pools for split in ("validation", "test")],
            ("accuracy", "loss", "num_nonfinite"),
            ("", *STATISTICS, MARGIN),
        )
    ]
    words = [in_words(name) for name in names]
    assert len(set(words)) == len(names)
    assert "_" not in "".join(words)
