"""Tests `tff_pfl.privacy`."""
