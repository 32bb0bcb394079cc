"""Replaces the training program: logs that it was started, and writes a summary."""

import json
import math
import os
import pathlib
import sys
import time
import zlib

flags = dict(flag[2:].partition("=")[::2] for flag in sys.argv[1:])
folder = pathlib.Path(flags["output_dir"])
print("started", flush=True)
with open(os.environ["STARTED"], "a") as file:
    rest = [flag for flag in sys.argv[1:] if "output_dir" not in flag and flag != "--resume"]
    file.write(f"{' '.join(rest)} by {os.getpid()}\n")
if flags.get("config.fails") == "True" and "MENDED" not in os.environ:
    sys.exit("It failed.")
while flags.get("config.waits") == "True":
    time.sleep(0.01)
(folder / "checkpoint" if flags.get("config.saves") else folder).mkdir(parents=True, exist_ok=True)
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
