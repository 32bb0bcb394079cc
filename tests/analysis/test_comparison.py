"""Tests the comparison of methods made in Python: its runs, its table and its refusals."""

import dataclasses
import json
import math
import os

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tff_pfl
from tests.analysis.hand_written import write_run
from tests.experiment.killed import Killed, contents_of, numbers_of
from tests.federation import random_examples, tiny_algorithm, tiny_experiment, tiny_model
from tests.marks import together
from tests.runs import run_python
from tff_pfl.analysis import confusion_matrix, read, results_table
from tff_pfl.arguments.kinds import KindError
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import Evaluation
from tff_pfl.experiment import OutputDirectoryError, RunDirectory, read_summary
from tff_pfl.privacy import Accountant, with_privacy
from tff_pfl.studies import experiments

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")


@pytest.fixture(scope="module")
def dataset():
    pairs = [random_examples(size, seed=size) for size in (6, 7, 8, 9)]
    return FederatedDataset.from_client_arrays([(e.x, e.y, e.x, e.y) for e in pairs], 3)


def methods(lambda_=1.0):
    ditto = tiny_algorithm("ditto", lambda_=lambda_)
    return {"Local": tiny_algorithm("local"), "Ditto, pulled": ditto}


OPTIONS = {"rounds": 2, "clients_per_round": 2, "evaluation": Evaluation(every=1)}


def compare(dataset, folder, made=None, seeds=(0, 3), **options):
    made = methods() if made is None else made
    return tff_pfl.compare(dataset, made, seeds=seeds, folder=folder, **OPTIONS | options)


@pytest.fixture
def written(tmp_path):
    """Writes runs of two methods with two seeds, as `compare` would."""
    accuracies = {
        "Local": ([0.5, 0.5, 0.8], [0.5, 0.6, 0.8]),
        "FedPer": ([0.6, 0.7, 0.7], [0.7, 0.7, 0.8]),
    }
    folders = {
        label: [
            write_run(tmp_path / label / f"seed{seed}", own, seed=seed, first_row=10 * seed)
            for seed, own in enumerate(of_seeds)
        ]
        for label, of_seeds in accuracies.items()
    }
    return tff_pfl.Comparison(folders)


def test_table_has_means_gains_and_who_is_hurt(written):
    local, fedper = written.table().loc["Local"], written.table().loc["FedPer"]
    assert np.isnan(local["gain"]) and np.isnan(local["hurt"])
    means = np.mean([0.6, 0.7, 0.7]), np.mean([0.7, 0.7, 0.8])
    assert fedper["accuracy"] == pytest.approx(np.mean(means))
    assert fedper["std"] == pytest.approx(np.std(means, ddof=1))
    assert fedper["median"] == pytest.approx(np.mean([0.7, 0.7]))
    gains = np.mean([0.1, 0.2, -0.1]), np.mean([0.2, 0.1, 0.0])
    assert fedper["gain"] == pytest.approx(np.mean(gains))
    assert fedper["gain_low"] < np.mean(gains) < fedper["gain_high"]
    assert (fedper["hurt"], fedper["helped"]) == pytest.approx((1 / 6, 4 / 6))  # one is equal
    assert (fedper["clients"], fedper["seeds"], fedper["bytes_up"]) == (3, 2, 2000)


def test_table_and_pictures_show_the_evaluation_that_is_named(tmp_path):
    """Compares Ditto with a method that was better after round 5 than after round 10."""
    runs = {
        "Local": write_run(tmp_path / "a", [0.5, 0.25], algorithm="local", early=2.0),
        "Ditto": write_run(tmp_path / "b", [0.75, 0.5]),
    }
    compared = tff_pfl.Comparison({label: [run] for label, run in runs.items()})
    last, best, late = (
        compared.table(evaluation=name) for name in ("final", "best_on_test", "late_mean")
    )
    columns = ["accuracy", "median"]
    assert last.loc["Local", columns].tolist() == [0.375, 0.375]
    assert best.loc["Local", columns].tolist() == [0.75, 0.75]
    assert late.loc["Local", columns].tolist() == [0.5625, 0.5625]
    assert (last.loc["Ditto", "gain"], best.loc["Ditto", "gain"]) == (0.25, -0.125)
    assert late["clients"].tolist() == [2, 2]
    assert compared.clients(evaluation="best_on_test")["Local"].tolist() == [1.0, 0.5]
    figure = compared.plot_clients(evaluation="best_on_test")
    assert figure.axes[0].get_title() == "Ditto\n50 % hurt, 0 % helped"
    chosen = "chosen on the examples that it reports"
    assert chosen in figure.get_supylabel().replace("\n", " ")
    assert chosen in best.to_string() and "chosen" not in late.to_string()
    with pytest.raises(OutputDirectoryError, match="It needs validation examples"):
        compared.table(evaluation="best_on_validation")


def test_mean_of_a_run_that_diverged_is_not_left_out(tmp_path):
    finite = write_run(tmp_path / "seed0", [0.5, 0.7])
    diverged = write_run(tmp_path / "seed1", [math.nan, math.nan], seed=1)
    row = tff_pfl.Comparison({"Local": [finite, diverged]}).table().loc["Local"]
    assert row["seeds"] == 2
    assert row[["accuracy", "std", "median"]].isna().all()


@pytest.mark.thorough
def test_undefined_clients_are_left_out_of_pairs_and_diverged_ones_are_the_worst(tmp_path):
    """Each seed has a client that is undefined under one method, and one that diverged."""
    nan = math.nan
    of_seeds = [
        (([0.5, 0.5, 0.5, nan], [2]), ([0.7, nan, 0.4, nan], [3])),
        (([0.5, 0.5, 0.5, 0.5], []), ([0.4, 0.9, nan, nan], [2, 3])),
        (([nan, nan], [0, 1]), ([0.4, 0.9], [])),
    ]
    folders = {"Local": [], "FedPer": []}
    for seed, runs in enumerate(of_seeds):
        for (label, paths), (own, undefined) in zip(folders.items(), runs, strict=True):
            path, options = tmp_path / label / str(seed), {"seed": seed, "undefined": undefined}
            paths.append(write_run(path, own, algorithm=label.lower(), **options))
    compared = tff_pfl.Comparison(folders)
    row = compared.table().loc["FedPer"]
    assert row["gain"] == -math.inf
    assert row[["hurt", "helped", "clients"]].tolist() == pytest.approx([0.5, 0.5, 7 / 3])
    (panel,) = compared.plot_clients().axes
    assert panel.get_title() == "FedPer\n50 % hurt, 50 % helped"
    against = results_table(read(folders), against="Local").frame
    assert against.loc[1, ["clients worse", "clients better"]].tolist() == ["50 %", "50 %"]
    del folders["Local"][0], folders["FedPer"][0]  # those with the diverged model
    row = tff_pfl.Comparison(folders).table().loc["FedPer"]
    assert (row["gain"], row["hurt"]) == pytest.approx((np.mean([-0.1, 0.4]), 0.5))
    assert not np.isnan(row["accuracy"])


def test_quantities_have_short_names(written):
    own = "personalized/local_test/accuracy"
    pd.testing.assert_frame_equal(written.table("accuracy"), written.table(own))


def test_gain_is_positive_for_less_loss_and_any_method_can_be_the_baseline(written):
    loss, table = "personalized/local_test/loss", written.table()
    assert written.table(loss).loc["FedPer", "gain"] == pytest.approx(table.loc["FedPer", "gain"])
    other = written.table(baseline="FedPer").loc["Local"]
    assert other["gain"] == pytest.approx(-table.loc["FedPer", "gain"])
    assert other["hurt"] == pytest.approx(4 / 6)
    with pytest.raises(UnknownNameError, match="Unknown baseline 'FedPr'"):
        written.table(baseline="FedPr")


@pytest.mark.thorough
def test_comparison_is_drawn_and_shown(written):
    axes = written.plot().axes[0]
    assert [line.get_label() for line in axes.get_lines()] == ["Local", "FedPer"]
    (panel,) = written.plot_clients().axes
    assert panel.get_title() == "FedPer\n17 % hurt, 67 % helped"
    assert written.plot()._repr_png_().startswith(b"\x89PNG")
    assert "FedPer" in repr(written) and "<table" in written._repr_html_()
    assert written.clients().loc[(0, 1), "FedPer"] == 0.7
    head, *_ = repr(written).splitlines()
    shown = ["accuracy", "gain", "gain_low", "gain_high", "p_value", "hurt", "helped"]
    assert head.split() == shown
    both = tff_pfl.Comparison(written.runs.folders | {"Again": written.runs.folders["FedPer"]})
    assert repr(both).split()[4:6] == ["p_value", "p_holm"]
    assert both.table().loc["Again", "p_holm"] == 2 * written.table().loc["FedPer", "p_value"]
    assert "No method" not in repr(written) + written._repr_html_()
    folders = {label: written.runs.folders[label] for label in ("FedPer", "Local")}
    assert "No method is better than FedPer on average." in repr(tff_pfl.Comparison(folders))


def test_data_methods_and_results_are_tables_in_notebooks(dataset, written):
    assert "<b>custom: 4 clients, 3 classes</b>" in dataset._repr_html_()
    assert repr(dataset).splitlines()[0] == "FederatedDataset custom: 4 clients, 3 classes"
    assert repr(dataset).splitlines()[2].split() == ["train", "30", "6", "7.5", "9"]
    ditto = methods()["Ditto, pulled"]
    assert repr(ditto).startswith("<Algorithm ditto: ") and "lambda_=1.0" in repr(ditto)
    shown, size = ditto._repr_html_(), 4 * tiny_model().num_weights + 4
    assert f"<td>a client keeps</td><td>{size / 1000:.1f} kB</td>" in shown
    assert "<td>lambda_</td><td>1.0</td>" in shown and "learning_rate 0.5" in shown
    ((_, first), *_) = written.runs
    shown = read_summary(first)._repr_html_()
    assert "round 10" in shown and "<td>personalized/local_test/accuracy</td><td>0.6000" in shown


@together(
    ("wrong", "message"),
    [
        ({"seeds": 3}, "seeds must be 1 or more numbers"),
        ({"seeds": (1, 1)}, "seeds must be different"),
        ({"baseline": "Loca"}, "Unknown baseline 'Loca'"),
        ({"made": {}}, "The methods must be a mapping"),
        ({"made": {"A": "ditto"}}, "The method 'A' must be of type Algorithm"),
        ({"accountant": Accountant(4, 2, 0.1)}, "no method has noise"),
        ({"dataset": lambda seed: pd.DataFrame()}, "FederatedDataset.from_client_arrays makes"),
        ({"evaluation": Evaluation(split="validation")}, "no client of 'custom' has validation"),
    ],
)
def test_mistakes_are_one_sentence(dataset, tmp_path, wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        compare(**{"dataset": dataset, "folder": tmp_path / "runs"} | wrong)
    assert not (tmp_path / "runs").exists()


def test_labels_of_one_folder_are_refused(dataset, tmp_path):
    local, ditto = methods().values()
    with pytest.raises(ValueError, match="names no folder of its own"):
        compare(dataset, tmp_path, {"A b": local, "A/b": ditto})


def test_experiments_with_arguments_or_of_other_kinds_are_refused(dataset, tmp_path):
    for labelled, options, kind, message in (
        ({"A": tiny_experiment(dataset)}, {"rounds": 3}, TypeError, "no argument 'rounds': set"),
        ({"A": lambda seed: "ditto"}, {}, KindError, "The experiment 'A' must be of type Exper"),
    ):
        with pytest.raises(kind, match=message):
            tff_pfl.compare(labelled, folder=tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_epsilon_is_infinite_without_noise_and_zero_without_uploads(tmp_path):
    runs = {
        label: [write_run(tmp_path / label, [0.5, 0.6, 0.7], **options)]
        for label, options in (
            ("Plain", {}),
            ("Local", {"bytes_down": 0}),
            ("Private", {"epsilon": 8.0}),
        )
    }
    found = tff_pfl.Comparison(runs).table()["epsilon"].to_dict()
    assert found == {"Plain": math.inf, "Local": 0.0, "Private": 8.0}
    assert "epsilon" not in tff_pfl.Comparison({"Local": runs["Local"]}).table()


@pytest.mark.slow
def test_epsilon_of_private_methods_is_counted(dataset, tmp_path):
    options = {"clients_per_round": 2, "clipping": "fixed", "seed": 0}
    private = with_privacy(tiny_algorithm("fedavg"), noise_multiplier=1.0, **options)
    made = {"Local": methods()["Local"], "Private": private}
    accountant = Accountant(4, 2, 0.01)
    with pytest.raises(ValueError, match="(?s)'poisson'.*drawn as"):
        accounted = dataclasses.replace(accountant, sampling="poisson")
        compare(dataset, tmp_path / "runs", made, accountant=accounted)
    assert not (tmp_path / "runs").exists()
    table = compare(dataset, tmp_path / "runs", made, accountant=accountant).table()
    assert table.loc["Private", "epsilon"] == pytest.approx(accountant.epsilon(1.0, rounds=2))
    found = read(tmp_path / "runs").summaries.set_index("label")["epsilon"]
    assert list(found["Private"]) == [table.loc["Private", "epsilon"]] * 2
    with pytest.raises(OutputDirectoryError, match="privacy.delta: 0.01 then, 0.02 now"):
        compare(dataset, tmp_path / "runs", made, accountant=Accountant(4, 2, 0.02))


@pytest.fixture(scope="module")
def compared(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return folder, compare(dataset, folder)


def test_short_form_gives_the_runs_of_experiments(dataset, tmp_path):
    """Checks that these are also the runs of `train`, and are a study for reports."""
    experiment = tiny_experiment(dataset, "local", **OPTIONS, seed=7)
    compare(dataset, tmp_path / "short", {"Local": tiny_algorithm("local")}, seeds=(0,))
    result = tff_pfl.compare({"Local": experiment}, seeds=(0,), folder=tmp_path / "long")
    assert list(read(tmp_path / "long").folders) == list(result.table().index) == ["Local"]
    assert list(results_table(read(tmp_path / "long")).frame["seeds"]) == ["1"]
    short, long = (tmp_path / name / "Local" / "seed0" for name in ("short", "long"))
    assert numbers_of(short) == numbers_of(long)
    assert (short / "config.json").read_text() == (long / "config.json").read_text()
    tff_pfl.train(dataclasses.replace(experiment, seed=0), tmp_path / "run")
    assert numbers_of(tmp_path / "run") == numbers_of(long)


@pytest.mark.thorough
def test_constant_predictions_are_a_row_of_the_table(dataset, tmp_path):
    made = {"Constant": tiny_algorithm("constant")}
    found = compare(dataset, tmp_path / "runs", made, rounds=1, seeds=(0,))
    labels = [dataset.examples(i, "test").y for i in range(4)]  # also the training labels
    expected = np.mean([np.bincount(y).max() / len(y) for y in labels])
    row = found.table().loc["Constant"]
    assert row["accuracy"] == pytest.approx(expected) and row["bytes_up"] == 0
    matrix = confusion_matrix(found.run("Constant").predictions())
    assert (matrix.to_numpy().sum(1) == np.bincount(np.concatenate(labels))).all()


@pytest.mark.slow
def test_runs_of_labels_are_evaluated_and_exported(dataset, compared, written, tmp_path):
    _, result = compared
    run = result.run("Ditto, pulled", seed=3)
    found = run.export(tmp_path / "models", [2])
    assert found == ("Ditto, pulled, seed 3", 2, ["global", "client_2"])
    loaded = tf.saved_model.load(str(tmp_path / "models" / "client_2"))
    x, y, _ = dataset.examples(2, "test")
    accuracy = result.clients("accuracy").loc[(3, 2), "Ditto, pulled"]
    assert np.mean(np.argmax(loaded(x), axis=1) == y) == pytest.approx(accuracy)
    predictions = run.predictions().query("client_id == 2")
    np.testing.assert_allclose(np.stack(predictions["personalized"]), loaded(x), atol=1e-5)
    assert result.run("Local").folder.endswith("seed0")
    for of, label, seed, message in (
        (result, "Local", 1, "Unknown seed '1'. Valid: '0', '3'"),
        (result, "Ditto", None, "Unknown label 'Ditto'"),
        (written, "Local", None, "Repeat the call of tff_pfl.compare"),
    ):
        with pytest.raises(ValueError, match=message):
            of.run(label, seed=seed)


@pytest.mark.slow
def test_finished_runs_stay_and_others_continue(dataset, compared, tmp_path, monkeypatch):
    folder, result = compared
    before = contents_of(folder)
    assert compare(dataset, folder).table().equals(result.table())
    assert contents_of(folder) == before
    trained = experiments.train

    def train(experiment, *args, **options):
        if experiment.seed == 3:
            raise Killed
        return trained(experiment, *args, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(experiments, "train", train)
        compare(dataset, tmp_path)
    assert (tmp_path / "Local/seed0/summary.json").exists()
    compare(dataset, tmp_path, rounds=1, overwrite=True)
    compare(dataset, tmp_path)
    for run in ("Local/seed0", "Ditto_pulled/seed3"):
        assert numbers_of(tmp_path / run) == numbers_of(folder / run)


@pytest.mark.slow
def test_run_of_another_method_or_data_is_refused(dataset, compared):
    folder, _ = compared
    before = contents_of(folder)
    for change, message in (
        ({"made": methods(lambda_=0.5)}, "algorithm.lambda_: 1.0 then, 0.5 now"),
        ({"dataset": dataset.of([0, 1, 2])}, "the fingerprint of its data and"),
    ):
        with pytest.raises(OutputDirectoryError, match=message):
            compare(**{"dataset": dataset, "folder": folder} | change)
    assert contents_of(folder) == before


@pytest.mark.slow
def test_fingerprint_is_the_same_in_another_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_model\n"
        "import json, sys, tff_pfl\n"
        "from tff_pfl.experiment.fingerprint import fingerprint\n"
        "names = {'ditto': {}, 'fedrep': {'personal_layers': ['head']}, 'apfl': {}}\n"
        "found = [fingerprint(tff_pfl.compose(tff_pfl.make(name, tiny_model(), local_sgd(), **own),"
        " EXAMPLES_TYPE).next) for _ in range(2) for name, own in names.items()]\n"
        "print(json.dumps(found))\n"
    )
    outputs = [run_python(program, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")]
    first, second = map(json.loads, outputs)
    assert first == second and first[:3] == first[3:] and len(set(first)) == 3


@pytest.mark.thorough
def test_run_that_failed_before_its_first_round_starts_over(dataset, tmp_path):
    made = {"Local": tiny_algorithm("local")}
    with RunDirectory(tmp_path / "Local/seed0", {"rounds": 9}) as directory:
        (tmp_path / "Local/seed0/metrics.csv").write_text("round\n")
    compare(dataset, tmp_path, made, seeds=(0,))
    assert directory.has("summary.json")


@pytest.mark.thorough
def test_folder_keeps_the_runs_of_earlier_calls(dataset, tmp_path):
    for label, rounds in (("First", 1), ("Second", 2)):
        made = {label: tiny_algorithm("local")}
        result = compare(dataset, tmp_path, made, rounds=rounds, seeds=(0,))
        assert list(result.table().index) == [label]
    table = tff_pfl.Comparison(tmp_path).table()
    assert list(table.index) == ["First", "Second"] and list(table["rounds"]) == [1, 2]


@pytest.mark.thorough
def test_edits_are_new_runs_in_folders_of_their_own(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = compare(dataset, None, seeds=(0,))
    (local,) = tmp_path.glob("runs/compare/Local/seed0-*")
    trained = contents_of(local)
    after = compare(dataset, None, methods(lambda_=0.1), seeds=(0,))
    assert not after.table().equals(before.table())
    runs = tmp_path / "runs/compare"
    assert len(list(runs.glob("*/seed0-*"))) == 3 and contents_of(local) == trained
    assert compare(dataset, None, seeds=(0,)).table().equals(before.table())
    assert tff_pfl.Comparison(runs).table().equals(before.table())
    compare(dataset, None, methods(lambda_=0.1), seeds=(0,), rounds=1)  # even of fewer rounds
    assert len(list(runs.glob("*/seed0-*"))) == 5


def test_experiment_is_trained_once_in_a_folder_of_its_own(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    experiment = tff_pfl.Experiment(tiny_algorithm("local"), dataset, **OPTIONS)
    run = tff_pfl.train(experiment)
    (folder,) = (tmp_path / "runs").iterdir()
    assert os.path.samefile(run.folder, folder) and folder.name.startswith("local_on_")
    before = numbers_of(folder)
    assert tff_pfl.train(experiment).result == run.result
    assert numbers_of(folder) == before
    assert "was finished before" in capsys.readouterr().out
    tff_pfl.train(dataclasses.replace(experiment, rounds=1), verbose=False)
    assert len(list((tmp_path / "runs").iterdir())) == 2
