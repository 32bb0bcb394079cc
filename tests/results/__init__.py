"""What the pages of `docs/results/` state, computed again from the files that lie beside them."""
