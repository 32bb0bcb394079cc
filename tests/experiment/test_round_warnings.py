"""Tests warnings about rounds: what they say, and that each kind is shown once."""

from tff_pfl.experiment.round_warnings import RoundWarnings, warnings_of


def test_warnings_name_the_exchange_and_what_to_do_if_most_clients_diverge():
    metrics = {
        "first": {"num_nonfinite": 2, "num_clients": 3, "server_kept": 0},
        "second": {"num_nonfinite": 4, "num_clients": 0, "server_kept": 1},
        "third": {"num_nonfinite": 0, "num_clients": 4, "server_kept": 1},
        "bytes_up_per_client": 12,
    }
    some, most, kept = warnings_of(metrics).values()
    assert some.startswith("first: 2 of 5 clients left out, because of a result that is not finite")
    assert some.endswith("exceeds their rows")
    assert most.startswith("second: 4 of 4 clients left out, because")
    assert most.endswith("the server keeps its state. Lower the learning rate or scale x and y")
    assert kept == "third: the server keeps its state, no valid update arrived"


def test_kind_of_warning_is_shown_once_and_counted():
    shown = []
    warnings = RoundWarnings("Ditto, seed 0", shown.append)
    half, most = ({"num_nonfinite": number, "num_clients": 2} for number in (2, 7))
    every = {"num_nonfinite": 7, "num_clients": 0, "server_kept": 1}
    for round_num, measured in enumerate([{}, half, most, most, most, every], 1):
        warnings.warn(round_num, warnings_of({"train": measured}))
    first, second, third = shown
    assert first.startswith("Ditto, seed 0, round 2: train: 2 of 4 clients left out")
    assert second.startswith("Ditto, seed 0, round 3: train: 7 of 9 clients left out")
    assert third.startswith("Ditto, seed 0, round 6: train: 7 of 7 clients left out")
    warnings.close()
    assert shown[3:] == ["Ditto, seed 0, in 3 rounds: train: most clients left out"]
