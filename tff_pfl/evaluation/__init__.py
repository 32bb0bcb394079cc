"""Federated evaluation, with metrics whose names state the model and the data."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "evaluator": ("EvaluationOptions", "Evaluator", "sampled_clients"),
        "federated": ("EvaluatedClient", "build_evaluation", "evaluate_federation"),
        "fine_tuning": ("fine_tuned", "locally_trained"),
        "gain": ("Gain", "differences", "gains", "gains_of_clients", "without_rounding"),
        "losses": ("global_losses",),
        "loss_plane": ("grid_axis", "loss_surface", "random_direction"),
        "metrics": (
            "MARGIN",
            "STATISTICS",
            "ClientMetrics",
            "MetricName",
            "from_text",
            "main_metric",
            "to_text",
        ),
        "new_clients": ("NewClientsEvaluation",),
        "predictions": (
            "Prediction",
            "Predictions",
            "build_predictions",
            "predict_federation",
        ),
        "pooled": ("PooledEvaluation", "drawn_clients"),
        "snapshots": ("take_snapshot",),
        "statistics": (
            "Distribution",
            "distributions",
            "groups_of",
            "mean_margin",
            "over_clients",
            "summarize",
        ),
    },
)
