"""Tests a coordinator and ten devices, each a process, that are killed twenty times."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.deployment.deployed import EXAMPLE, exported, free_port

NUM_DEVICES, ROUNDS, KILLS = 10, 5, 20


def start(program, **flags):
    command = [sys.executable, str(EXAMPLE / f"{program}.py")]
    command += [f"--{name}={value}" for name, value in flags.items()]
    return subprocess.Popen(command, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})


class Programs:
    """The programs of the example, started again whenever they are killed."""

    def __init__(self, folder):
        self._folder, self._port, self._running = folder, free_port(), {}

    def start(self, number):
        """Starts device `number`, or the coordinator if it is -1."""
        folder = self._folder / ("server" if number < 0 else f"device_{number}")
        if number < 0:
            flags = {"port": self._port, "devices": NUM_DEVICES, "cohort": 6, "rounds": ROUNDS}
            process = start("coordinator", folder=folder, **flags)
        else:
            process = start("device", folder=folder, coordinator=f"localhost:{self._port}")
        self._running[number] = process

    def kill(self, number):
        """Kills a program and starts it again."""
        self._running[number].send_signal(signal.SIGKILL)
        self._running[number].wait()
        self.start(number)

    def ended(self):
        return [i for i, one in self._running.items() if i >= 0 and one.poll() is not None]

    def stop(self):
        for process in self._running.values():
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["ditto", "fedper", "fedpg", "pgfed", "pfedhn"])
def test_models_equal_those_of_the_simulation(algorithm, tmp_path):
    folder, rng = tmp_path / "deployed", np.random.default_rng(0)
    programs = Programs(folder)
    assert start("export", algorithm=algorithm, output=folder).wait() == 0
    try:
        for number in range(-1, NUM_DEVICES):
            programs.start(number)
        kills = KILLS if algorithm == "fedpg" else 0
        while len(programs.ended()) < NUM_DEVICES:
            time.sleep(rng.uniform(0.5, 3.0))
            alive = sorted(set(range(-1, NUM_DEVICES)) - set(programs.ended()))
            if kills:
                programs.kill(int(rng.choice(alive)))
                kills -= 1
    finally:
        programs.stop()
    assert not kills
    history = exported.Message.unpack((folder / "server/memory.npz").read_bytes()).header["history"]
    assert len(history) >= ROUNDS
    assert start("check", algorithm=algorithm, deployed=folder).wait() == 0
