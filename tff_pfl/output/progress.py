"""Makes progress bars, for terminals and notebooks."""

import tqdm.auto

Bar = tqdm.auto.tqdm
_IN_NOTEBOOK = any(base.__module__ == "tqdm.notebook" for base in Bar.__mro__)


def progress_bar(*, visible: bool = True, **options) -> tqdm.auto.tqdm:
    """Returns a bar of `tqdm.auto` that files and pipes do not receive.

    Args:
        visible: Whether to show the bar; its `write` prints in any case.
        **options: Options of `tqdm.tqdm`, such as `total` and `desc`.
    """
    # A notebook's output is no terminal, so that tqdm would disable the bar.
    hidden = False if _IN_NOTEBOOK else None
    return Bar(disable=hidden if visible else True, **options)
