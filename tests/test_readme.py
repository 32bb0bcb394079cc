"""The examples of the README are complete: they run, as they stand, with no other output."""

import pathlib
import re

import numpy as np

from tests.federation import EXAMPLES_TYPE, assert_close, local_sgd, make_clients, tiny_model
from tests.runs import run_python
from tff_pfl.algorithms import build_fedavg, build_local

README = pathlib.Path(__file__).parents[1] / "README.md"


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_own_algorithm_model_and_data(tmp_path):
    algorithm, *program = examples()
    (tmp_path / "mixed_start.py").write_text(algorithm)
    (tmp_path / "program.py").write_text("".join(program))
    done = run_python(tmp_path / "program.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *evaluations, personalized, global_ = done.stdout.splitlines()
    assert float(personalized) > 0.8 > 0.5 > float(global_)
    assert [line.partition(":")[0] for line in evaluations] == ["round 10", "round 20"]
    assert (tmp_path / "runs" / "mixed_start" / "metrics.csv").exists()


def test_what_the_example_says_of_its_hyperparameter():
    names = {}
    exec(compile(examples()[0], str(README), "exec"), names)
    model = tiny_model()

    def two_rounds(build, **options):
        process = build(model, EXAMPLES_TYPE, local_sgd(), **options)
        state, clients = process.initialize(), make_clients(process, [6, 9])
        for _ in range(2):
            state, states, _ = process.next(state, clients)
            clients = [c._replace(state=s) for c, s in zip(clients, states, strict=True)]
        return process, state, clients

    _, fedavg, _ = two_rounds(build_fedavg)
    _, state, _ = two_rounds(names["build_mixed_start"], own_share=0.0)
    assert_close(state.algorithm.weights, fedavg.algorithm.weights)
    _, _, alone = two_rounds(build_local)
    process, state, clients = two_rounds(names["build_mixed_start"], own_share=1.0)
    assert_close([c.state for c in clients], [c.state for c in alone])
    personal = process.personalize(state, clients)
    assert_close(personal, [c.state.model for c in clients])
    assert not np.allclose(personal[0]["head"]["kernel"], state.algorithm.weights["head"]["kernel"])
