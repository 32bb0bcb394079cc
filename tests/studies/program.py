"""Replaces the training of runs: logs that it was started, and writes a summary."""

import json
import math
import os
import pathlib
import time
import zlib


def train(arguments, folder, waits=False):
    """Returns the exit code of a run, whose results follow from its flags."""
    flags = dict(flag[2:].partition("=")[::2] for flag in arguments)
    folder = pathlib.Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = pathlib.Path(f"{folder}.log")
    log.write_text("started\n")
    with open(os.environ["STARTED"], "a") as file:
        file.write(f"{' '.join(arguments)} by {os.getpid()}\n")
    if flags.get("config.fails") == "True" and "MENDED" not in os.environ:
        log.write_text("started\nIt failed.\n")
        return 1
    while flags.get("config.waits") == "True":
        time.sleep(0.01)
    (folder / "checkpoint" if flags.get("config.saves") else folder).mkdir(
        parents=True, exist_ok=True
    )
    write_results(folder, flags)
    return 0


def write_results(folder, flags):
    rounds, rate = int(flags.get("config.rounds", 3)), float(flags.get("config.rate", 0))
    # The lowest rate is the best in the end, but not after few rounds. An infinite rate diverges.
    accuracy = rounds * (10 - rate) if rounds > 2 else rate
    metrics = {
        "personalized/local_test/accuracy_mean": accuracy if math.isfinite(accuracy) else None,
        "personalized/local_test/loss_mean": -accuracy if math.isfinite(accuracy) else None,
    }
    summary = {
        "title": "t",
        "final": {"round_num": rounds, "metrics": metrics},
        "late_mean": {"rounds": [rounds], "metrics": metrics},
        "seconds": 1.0,
    }
    summary["checksum"] = f"{zlib.crc32(json.dumps(summary).encode()):08x}"
    if better := flags.get("config.better"):
        stated = {"accuracy": {"name": "accuracy", "better": int(better)}}
        (folder / "quantities.json").write_text(json.dumps(stated))
    (folder / "summary.json").write_text(json.dumps(summary))
