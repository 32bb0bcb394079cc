"""Says at the end what became of the cases of the fuzz."""

import collections


def pytest_terminal_summary(terminalreporter):
    counts = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name.startswith("fuzz: ") and report.when == "call":
                    counts[name.removeprefix("fuzz: ")] += value
    if counts:
        total = sum(counts.values()) - counts["not for this operation"]
        parts = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
        terminalreporter.write_sep("=", f"fuzz: {total:,} cases: {parts}")
