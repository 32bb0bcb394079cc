"""Tests the descriptions of metrics in words."""

from tff_pfl.analysis.metric_text import in_short, in_words
from tff_pfl.evaluation import MARGIN, STATISTICS, MetricName

WORDS = {
    "personalized/local_test/accuracy": "accuracy of each client's own model on its own test "
    "examples",
    "global/local_validation/loss_mean": "loss of the global model on each client's own "
    "validation examples, mean over clients",
    "personalized/generalization_test/accuracy_worst_5_percent": "accuracy of each client's own "
    "model on the test examples of all clients, mean of the lowest 5 % of clients",
    "personalized/synthetic12.5_test/accuracy_std": "accuracy of each client's own model on its "
    "own test examples and those of 12.5 % of the other clients, standard deviation over clients",
    "global/synthetic50_test/top_5_accuracy_best_5_percent": "top 5 accuracy of the global model "
    "on the test examples of each client and of 50 % of the others, mean of the top 5 % of clients",
    "fine_tuned/new_clients_test/accuracy_mean": "accuracy of each new client's fine-tuned model "
    "on its own test examples, mean over clients",
    "locally_trained/local_test/accuracy": "accuracy of each client's locally trained global "
    "model on its own test examples",
    "global/new_clients_test/accuracy": "accuracy of the global model on each new client's own "
    "test examples",
    "personalized/local_test/num_nonfinite": "number of clients with a loss that is not finite, "
    "of each client's own model on its own test examples",
    "num_clients_never_selected": "clients never selected",
    "train/loss": "loss, train",
}
HEADS = {
    "personalized/local_test/accuracy": "personalized",
    "global/local_validation/loss_mean": "global, loss, local validation",
    "personalized/local_test/mse_worst_5_percent": "personalized, mse, top 5 %",
    "global/synthetic50_test/top_5_accuracy_best_5_percent": "global, top 5 accuracy, "
    "synthetic50 test, top 5 %",
    "fine_tuned/new_clients_test/accuracy_std": "fine tuned, new clients test, standard deviation",
    "num_clients_never_selected": "num clients never selected",
}


def test_metrics_have_words_and_a_short_head():
    names = map(MetricName.parse, WORDS)
    assert dict(zip(WORDS, map(in_words, names), strict=True)) == WORDS
    names = map(MetricName.parse, HEADS)
    assert dict(zip(HEADS, map(in_short, names), strict=True)) == HEADS


def test_words_are_unique_and_without_underscores():
    pools = ("local", "generalization", "synthetic0", "synthetic50", "new_clients")
    names = [
        MetricName(model, f"{pool}_{split}", quantity, statistic)
        for model in ("personalized", "locally_trained", "fine_tuned", "global")
        for pool in pools
        for split in ("validation", "test")
        for quantity in ("accuracy", "loss", "num_nonfinite")
        for statistic in ("", *STATISTICS, MARGIN)
    ]
    words = [in_words(name) for name in names]
    assert len(set(words)) == len(names)
    assert "_" not in "".join(words)
