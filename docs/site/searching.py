"""Ranks pages in searches: by their folder, and by words for which a page is the answer."""

from docs.site import methods

_BOOSTS = {
    "api": 0.1,
    "changelog.md": 0.1,
    "forms.md": 0.1,
    "guides": 4,
    "methods": 3,
    "results": 0.5,
}
_KEYWORDS = {
    "files.md": ["csv", "checkpoint", "tensorboard"],
    "guides/attacks.md": ["byzantine", "robust"],
    "guides/coming_from.md": ["PFLlib", "Flower", "TFF"],
    "guides/comparing.md": ["p_value", "hurt", "helped", "significance"],
    "guides/deployment.md": ["deploy", "SavedModel", "serving"],
    "guides/determinism.md": ["reproducible", "seed", "resume"],
    "guides/evaluation.md": ["early stopping", "validation"],
    "guides/gpus.md": ["gpu", "cuda"],
    "guides/large_models.md": ["out of memory", "mixed precision"],
    "guides/metrics.md": ["metrics", "accuracy", "loss"],
    "guides/new_clients.md": ["new client"],
    "guides/own_data.md": ["own data", "pandas", "csv"],
    "guides/own_method.md": ["own method"],
    "guides/pretrained.md": ["LoRA", "adapters", "transformer"],
    "guides/privacy.md": ["epsilon", "differential privacy"],
    "guides/programs.md": ["release manager"],
    "guides/sweeps.md": ["grid", "hyperparameters", "optuna", "tuning"],
    "guides/tasks.md": ["regression", "multi-label", "survival"],
    "guides/trackers.md": ["wandb", "mlflow"],
    "guides/training.md": ["learning rate", "aggregator"],
    "keys.md": ["config", "flags"],
    "tutorials/index.md": ["notebook", "jupyter"],
}


def rank(page) -> None:
    """Sets the boost and the keywords of a page of MkDocs."""
    uri = page.file.src_uri
    page.meta.setdefault("search", {}).setdefault("boost", _BOOSTS.get(uri.split("/")[0], 1))
    page.meta["tags"] = _KEYWORDS.get(uri) or methods.names_of(uri)
