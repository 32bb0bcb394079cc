"""Runs of programs as users start them, and a config that takes a moment."""

import os
import pathlib
import subprocess
import sys

from absl import flags
from ml_collections import config_flags

from tff_pfl.experiment import check_config, default_config, parse_flags

ROOT = pathlib.Path(__file__).parents[1]


def run_python(*arguments, folder=ROOT, **variables) -> subprocess.CompletedProcess:
    """Runs Python on the repository, without what pytest and other tests have set.

    Args:
        *arguments: Its command line.
        folder: Where it runs.
        **variables: Of the environment.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )


def tiny_config(algorithm="ditto", **changes):
    """On digits: 2 of 4 clients in each of 2 rounds, and 4 hidden units."""
    config = default_config(algorithm)
    config.rounds = 2
    config.clients_per_round = 2
    config.data.num_clients = 4
    config.local.epochs = 1
    config.model.options.hidden = (4,)
    config.update(changes)
    return config


def config_of_flags(monkeypatch, *arguments):
    """The config of a command line, as programs parse and check it."""
    monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())
    argv = ["program", *arguments]
    config_flags.DEFINE_config_file("config", flag_values=flags.FLAGS, sys_argv=argv)
    parse_flags(argv)
    check_config(flags.FLAGS.config)
    return flags.FLAGS.config
