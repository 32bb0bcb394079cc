"""What `evaluate_run` and `evaluate_program` refuse: directories that are none, and options."""

import shutil

import pytest

from tests.runs import keep_the_context, tiny_config, train_run, with_settings
from tff_pfl.experiment import ConfigError, OutputDirectoryError, evaluate_program, evaluate_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a finished run of two rounds."""
    return train_run(tmp_path_factory.mktemp("runs") / "run", tiny_config())


def damaged(run, path):
    shutil.copytree(run, path)
    (path / "config.json").write_text('{"seed": ')


def without_commits(run, path):
    shutil.copytree(run, path)
    shutil.rmtree(path / "checkpoint")
    (path / "checkpoint").mkdir()


def without(name):
    def make(run, path):
        shutil.copytree(run, path, ignore=shutil.ignore_patterns(name))

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run, path: None, "wrong has no config.json of a run."),
        (lambda run, path: path.mkdir(), "wrong has no config.json of a run."),
        (lambda run, path: path.write_text("a file"), "wrong has no config.json of a run."),
        (without("config.json"), "wrong has no config.json of a run."),
        (without("checkpoint"), "wrong has no checkpoint of a run."),
        (
            with_settings(lambda settings: settings.update(round=3)),
            "Unknown config key 'round'. Did you mean 'rounds'",
        ),
        (
            with_settings(lambda settings: settings["local"].update(epoch=3)),
            "Unknown config key 'epoch'. Did you mean 'epochs'",
        ),
        (
            with_settings(lambda settings: settings["algorithm"].update(lamda_=3)),
            "Unknown option of algorithm 'ditto' 'lamda_'. Did you mean 'lambda_'",
        ),
        (
            with_settings(lambda settings: settings["algorithm"].update(name="dito")),
            "config.json describes no run of this version: Unknown algorithm 'dito'",
        ),
        (
            with_settings(lambda settings: settings.pop("algorithm")),
            "config.json has no algorithm: the run was made in Python, without a config",
        ),
        (
            with_settings(lambda settings: settings.update(rounds="many")),
            "config.json describes no run of this version: ",
        ),
        (
            with_settings(lambda settings: settings.pop("local")),
            "config.json describes no run of this version: local are missing",
        ),
        (
            with_settings(lambda settings: settings.update(data=3)),
            "config.json describes no run of this version: ",
        ),
        (damaged, "config.json is damaged: "),
        (without_commits, "wrong has no checkpoint of a run."),
        (
            with_settings(lambda settings: settings.update(seed=9)),
            "wrong has other data or another partition of them",
        ),
    ],
)
def test_mistakes_are_one_message(run, tmp_path, capsys, make, message):
    make(run, tmp_path / "wrong")
    output = tmp_path / "out" / "result"
    code = evaluate_program(str(tmp_path / "wrong"), str(output), set_context=keep_the_context)
    printed = capsys.readouterr()
    assert code == 1
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert not output.parent.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "validation"}, "no client has validation examples"),
        ({"generalization": "lats"}, "Did you mean 'last'"),
        (
            {"synthetic": (2.0,)},
            "config.evaluation.synthetic must be a sequence",
        ),
        (
            {"fine_tune_epochs": -1},
            "config.evaluation.fine_tune_epochs must be a whole number of at least 0, got -1",
        ),
        (
            {"fine_tune_epochs": 2.5},
            "config.evaluation: Could not override field 'fine_tune_epochs'",
        ),
        ({"further_models": ("local",)}, "Unknown further model 'local'. Did you mean 'locally_"),
        (
            {"further_models": ("fine_tuned",)},
            "has 'fine_tuned', but config.evaluation.fine_tune_epochs=0. Set it to",
        ),
        ({"fine_tune_learning_rate": 0.1}, "has no effect, as fine_tune_epochs is 0."),
        ({"synthetic": (0.1,)}, "synthetic=(0.1,) has no effect, as generalization is 'never'."),
        ({"subsample": True}, "subsample=True has no effect, as generalization is 'never'."),
        ({"fine_tune_epoch": 1}, "Unknown config key 'fine_tune_epoch'. Did you mean 'fine_tune_"),
    ],
    ids=str,
)
def test_options_that_cannot_be(run, tmp_path, capsys, options, message):
    code = evaluate_program(str(run), str(tmp_path / "x"), set_context=keep_the_context, **options)
    assert code == 1
    assert message in capsys.readouterr().err
    with pytest.raises(ConfigError):
        evaluate_run(str(run), **options)


def test_where_results_cannot_be_nothing_is_computed(run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    output = str(tmp_path / "file" / "x")
    assert evaluate_program(str(run), output, set_context=lambda: pytest.fail("computes")) == 1
    assert capsys.readouterr().err.endswith(
        f"x cannot be written: {tmp_path / 'file'} is a file.\n"
    )


def test_what_was_found_is_told_even_if_it_cannot_be_written(run, tmp_path, capsys):
    (tmp_path / "x.json").mkdir()
    assert evaluate_program(str(run), str(tmp_path / "x"), set_context=keep_the_context) == 1
    printed = capsys.readouterr()
    assert "over clients: personalized/local_test/accuracy" in printed.out
    assert "results:" not in printed.out
    assert printed.err.startswith("error: ") and "x.json" in printed.err


def test_a_directory_that_is_none_is_an_error_of_its_own_kind(tmp_path):
    with pytest.raises(OutputDirectoryError, match="has no config.json of a run"):
        evaluate_run(str(tmp_path))


def test_a_run_from_before_there_were_attacks(run, tmp_path):
    with_settings(lambda settings: settings.pop("attack"))(run, tmp_path / "old")
    found = evaluate_run(str(tmp_path / "old"))
    assert found.evaluation.round_num == 2


@pytest.mark.parametrize("name", ["metrics", "summary", "clients/mine", "../run/timings"])
def test_results_do_not_take_the_place_of_files_of_the_run(run, capsys, name):
    before = contents(run)
    assert evaluate_program(str(run), str(run / name), set_context=keep_the_context) == 1
    assert f"error: output='{run / name}': {run}" in capsys.readouterr().err
    assert contents(run) == before


def test_nor_of_those_of_another_run(run, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    before = contents(other)
    assert evaluate_program(str(run), str(other / "metrics"), set_context=keep_the_context) == 1
    assert f"error: output='{other / 'metrics'}': {other}" in capsys.readouterr().err
    assert contents(other) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
