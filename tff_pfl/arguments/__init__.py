"""Checks of what users say: names, ranges of numbers, kinds of values, choices by name."""
