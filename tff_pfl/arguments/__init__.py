"""Checks users' words and numbers: names, ranges, kinds of values, choices by name."""
