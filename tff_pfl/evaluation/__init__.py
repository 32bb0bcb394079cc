"""Federated evaluation, with metrics whose names state the model and the data."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "each_client": ("EvaluatedClient", "evaluated_model", "for_each_client", "map_models"),
        "evaluator": ("EvaluationOptions", "Evaluator", "measured", "sampled_clients"),
        "fine_tuning": ("fine_tuned", "locally_trained"),
        "gain": ("Gain", "differences", "gains", "gains_of_clients", "without_rounding"),
        "loss_plane": ("grid_axis", "loss_surface", "random_direction"),
        "metrics": (
            "MARGIN",
            "STATISTICS",
            "ClientMetrics",
            "MetricName",
            "direction",
            "from_text",
            "main_metric",
            "to_text",
        ),
        "new_clients": ("NewClientsEvaluation",),
        "predictions": ("Prediction", "Predictions"),
        "pooled": ("PooledEvaluation", "drawn_clients"),
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
