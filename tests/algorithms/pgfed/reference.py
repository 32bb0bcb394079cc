"""PGFed, PGFedMo and PGFed-CE in NumPy, following the paper.

Loops run over clients, the last cohort and steps of exact gradient descent; a model is a vector.
"""

import dataclasses

import numpy as np

# Options of `build_pgfed`, by the name of the variant.
CE = {"communication_efficient": True}
VARIANTS = {
    "pgfed": {},
    "pgfedmo": {"beta": 0.5},
    "pgfed_ce": {**CE, "weighting": "uniform"},
    "pgfedmo_ce": {**CE, "beta": 0.8},
}


@dataclasses.dataclass
class Quadratic:
    """The objective of a client: `f(w) = 1/2 (w - c)^T A (w - c) + b`."""

    a: np.ndarray
    c: np.ndarray
    b: float

    def loss(self, w) -> float:
        return 0.5 * (w - self.c) @ self.a @ (w - self.c) + self.b

    def gradient(self, w) -> np.ndarray:
        return self.a @ (w - self.c)


@dataclasses.dataclass
class Taylor:
    """A client's linear risk around its model at the end of a round."""

    model: np.ndarray
    loss: float
    gradient: np.ndarray

    def __call__(self, w) -> float:
        return self.loss + self.gradient @ (w - self.model)

    @property
    def intercept(self) -> float:
        return self.loss - self.gradient @ self.model


class PGFed:
    """The server and the clients' values; `models` and `averages` lack clients not yet seen."""

    def __init__(
        self,
        weights,
        num_clients,
        *,
        clients_per_round,
        rate,
        steps,
        mu,
        alpha_learning_rate,
        beta=0.0,
        communication_efficient=False,
    ):
        self.weights = np.asarray(weights, np.float64)
        self.alpha = np.full((num_clients, num_clients), 1 / clients_per_round)
        self.last: dict[int, Taylor] = {}
        self.models: dict[int, np.ndarray] = {}
        self.averages: dict[int, np.ndarray] = {}
        self.rate, self.steps = rate, steps
        self.mu, self.alpha_learning_rate = mu, alpha_learning_rate
        self.beta, self.communication_efficient = beta, communication_efficient

    def next(self, cohort: dict[int, Quadratic], sizes: dict[int, float]) -> None:
        """Runs a round of clients with weights `sizes`."""
        risks = {}
        for i, objective in cohort.items():
            theta = self.models[i] = self._train(i, objective)
            risks[i] = Taylor(theta, objective.loss(theta), objective.gradient(theta))
        total = sum(sizes[i] for i in cohort)
        self.weights = sum(sizes[i] / total * self.models[i] for i in cohort)
        self.last = risks

    def objective(self, i, own: Quadratic, theta, alpha_row) -> float:
        """Computes `F_i(theta, alpha_i)`."""
        return own.loss(theta) + self.mu * sum(
            alpha_row[j] * f(theta) for j, f in self.last.items()
        )

    def _train(self, i, objective):
        mean_gradient = np.zeros_like(self.weights)
        for risk in self.last.values():
            mean_gradient += self.mu * risk.gradient / len(self.last)
        auxiliary = self._auxiliary_gradient(i)
        theta = self.weights
        for _ in range(self.steps):
            at = self.weights if self.communication_efficient else theta
            for j, risk in self.last.items():
                slope = self.mu * risk.intercept + mean_gradient @ at
                self.alpha[i, j] = max(0.0, self.alpha[i, j] - self.alpha_learning_rate * slope)
            theta = theta - self.rate * (objective.gradient(theta) + auxiliary)
        return theta

    def _auxiliary_gradient(self, i):
        new = np.zeros_like(self.weights)
        for j, risk in self.last.items():
            new += self.mu * self.alpha[i, j] * risk.gradient
        if not self.beta or not self.last:
            return new
        if i in self.averages:
            new = (1 - self.beta) * new + self.beta * self.averages[i]
        self.averages[i] = new
        return new
