"""What users may say: names, ranges of numbers, kinds of values, choices by name."""
