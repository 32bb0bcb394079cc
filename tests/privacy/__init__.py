"""Tests of `tff_pfl.privacy`."""
