"""FedPG and S-FedPG in NumPy, following the papers' pseudo-code.

Loops run over clients, a model is a vector, and non-negative least squares finds the min-norm
point. Golden values are printed by

    python -m tests.algorithms.fedpg.reference
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy.optimize


@dataclasses.dataclass
class Objective:
    """The objective of a client: its loss and its gradient as functions of weights."""

    loss: Callable[[np.ndarray], float]
    gradient: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass
class Round:
    """The values that a round computes."""

    lambda_: np.ndarray
    sigma: float
    direction: np.ndarray
    gamma: dict[int, float]
    step: float
    weights: np.ndarray
    models: dict[int, np.ndarray]
    trials: int
    accepted: bool


def min_norm(columns: np.ndarray) -> np.ndarray:
    """Computes the weights of the convex combination of columns `[n, k]` nearest to 0."""
    scale = np.linalg.norm(columns, axis=0).min()
    system = np.vstack([columns / scale, np.ones(columns.shape[1])])
    solution, _ = scipy.optimize.nnls(system, np.append(np.zeros(len(columns)), 1.0))
    return solution / solution.sum()


def fairness_gradient(losses: np.ndarray) -> np.ndarray:
    ones, norm, m = losses.sum(), np.linalg.norm(losses), len(losses)
    return (ones * losses / (np.sqrt(m) * norm**2) - 1 / np.sqrt(m)) / norm


def fairness(losses: np.ndarray) -> float:
    return -losses.sum() / (np.sqrt(len(losses)) * np.linalg.norm(losses))


class FedPG:
    """The server and the clients' models."""

    def __init__(
        self,
        weights,
        rate,
        *,
        decay=1.0,
        direction="mgda",
        fairness=True,
        absent_memory=True,
        personalize=True,
        gamma_mode="auto",
        gamma=0.0,
        protect_absent=False,
        fair_from="scaled",
        rescale_with="scaled",
        step_search=False,
        search_doublings=1,
        sufficient_decrease=1e-4,
    ):
        self.weights = np.asarray(weights, np.float64)
        self.memory = {}
        self.models = {}
        self.round_num = 0
        self.rate, self.decay = rate, decay
        self.direction = direction
        self.fairness, self.absent_memory = fairness, absent_memory
        self.personalize, self.gamma_mode, self.gamma = personalize, gamma_mode, gamma
        self.protect_absent = protect_absent
        self.fair_from, self.rescale_with = fair_from, rescale_with
        self.step_search = step_search
        self.search_doublings, self.beta = search_doublings, sufficient_decrease

    def next(self, cohort: dict[int, Objective]) -> Round:
        w = self.weights
        g = {i: c.gradient(w) for i, c in cohort.items()}
        loss = {i: c.loss(w) for i, c in cohort.items()}
        live = [i for i in cohort if np.linalg.norm(g[i]) > 1e-6]
        assert live, "The pseudo-code skips a round without gradients."
        mu = np.mean([np.linalg.norm(g[i]) for i in live])
        scaled = {i: mu * g[i] / np.linalg.norm(g[i]) for i in live}
        for i in cohort:
            self.memory.pop(i, None)
        for i in live:
            self.memory[i] = self.round_num, g[i]
        window = len(self.memory) / len(cohort)
        absent = [
            memory_g
            for j, (last, memory_g) in self.memory.items()
            if j not in cohort and self.round_num - last <= window
        ]
        if not self.absent_memory or self.direction == "mean":
            absent = []
        h = fairness_gradient(np.array([loss[i] for i in live]))

        columns = [scaled[i] for i in live]
        columns += [mu * a / np.linalg.norm(a) for a in absent]
        if self.fairness:
            source = scaled if self.fair_from == "scaled" else g
            q = sum(h_i * source[i] for h_i, i in zip(h, live, strict=True))
            if len(live) >= 2 and np.linalg.norm(q) > 1e-12 * mu:
                columns.append(mu * q / np.linalg.norm(q))
        if self.direction == "mean":
            lambda_, sigma = np.full(len(cohort), 1 / len(cohort)), 1.0
            d = -np.mean([g[i] for i in cohort], axis=0)
        else:
            lambda_ = min_norm(np.stack(columns, axis=1))
            d = -np.stack(columns, axis=1) @ lambda_
            source = scaled if self.rescale_with == "scaled" else g
            mean = np.mean([source[i] for i in live], axis=0)
            sigma = 0.0
            if np.linalg.norm(d) > 1e-8 * mu:
                sigma = np.linalg.norm(mean) / np.linalg.norm(d)
            d = sigma * d
        gamma = {i: self._gamma(i, g, d, live, absent) for i in cohort}

        step, trials, accepted = self.rate * self.decay**self.round_num, 0, False
        if self.step_search:
            step, trials, accepted = self._search(step, sigma, d, cohort, live, g, loss, h)
        for i in cohort:
            self.models[i] = w + step * (d + gamma[i] * (-g[i] - d))
        self.weights = w + step * d
        self.round_num += 1
        models = {i: self.models[i] for i in cohort}
        return Round(lambda_, sigma, d, gamma, step, self.weights, models, trials, accepted)

    def _gamma(self, i, g, d, live, absent):
        if i not in live or not self.personalize:
            return 0.0
        auto = 1.0
        others = [g[j] for j in live if j != i] + (absent if self.protect_absent else [])
        for other in others:
            if other @ g[i] < 0:
                descent = abs(min(other @ d, 0.0))
                auto = min(auto, descent / (descent + abs(other @ g[i])))
        return {"auto": auto, "constant": self.gamma, "at_least": max(auto, self.gamma)}[
            self.gamma_mode
        ]

    def _search(self, rate, sigma, d, cohort, live, g, loss, h):
        before = np.array([loss[i] for i in live])
        slopes = np.array([g[i] @ d for i in live])
        least = rate / 2**self.search_doublings / max(sigma, 1.0)
        step, sums = rate * 2**self.search_doublings, {}
        while not sums or step >= least * (1 - 1e-9):
            after = np.array([cohort[i].loss(self.weights + step * d) for i in live])
            sums[step] = after.sum()
            descends = np.all(after <= before + self.beta * step * slopes)
            fairness_slope = min(h @ slopes, 0.0)
            is_fair = fairness(after) <= fairness(before) + self.beta * step * fairness_slope
            if descends and is_fair:
                return step, len(sums), True
            step /= 2
        lower = [step for step, total in sums.items() if total < before.sum()]
        return (max(lower) if lower else min(sums, key=sums.get)), len(sums), False


GRADIENTS = {0: (1, -0.3, 0), 1: (-1, 1, -0.2), 2: (-1, -1, 1)}
LOSSES = {0: 1.0, 1: 2.0, 2: 3.0}
ABSENT = (0.3, 0.1, -0.1)


def golden_cohort() -> dict[int, Objective]:
    """Makes the cohort of the golden values, with constant gradients and losses."""
    return {
        i: Objective(lambda w, i=i: LOSSES[i], lambda w, i=i: np.array(GRADIENTS[i], float))
        for i in GRADIENTS
    }


def main():
    np.set_printoptions(precision=6, suppress=True)
    for name, options, absent in (
        ("no memory", {}, False),
        ("one absent gradient", {}, True),
        ("M2, no memory", {"fairness": False}, False),
    ):
        server = FedPG(np.zeros(3), 1.0, **options)
        if absent:
            server.memory[9] = 0, np.array(ABSENT)
        result = server.next(golden_cohort())
        print(f"{name}: lambda={result.lambda_} sigma={result.sigma:.6f} d={result.direction}")
        print(f"  gamma={np.array(list(result.gamma.values()))} d_1={result.models[0]}")


if __name__ == "__main__":
    main()
