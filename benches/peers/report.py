"""The table and the JSON of a run."""

import statistics

MOST_FOREIGN = 0.05  # share of the processors that others may take before a cell is marked


def known(samples: list[float | None]) -> list[float]:
    """Samples of the rounds that have a figure."""
    return [sample for sample in samples if sample is not None]


def median(samples: list[float | None]) -> float | None:
    return statistics.median(known(samples)) if known(samples) else None


def cell(result: dict) -> str:
    """`ours / best peer with its letter / ratio by rounds / share of the ceiling`; unknown values are a
    dash."""
    ours, peers = median(result["samples"].get("S", [])), {}
    for letter, samples in result["samples"].items():
        if letter != "S" and known(samples):
            peers[letter] = median(samples)
    best = max(peers, key=peers.get, default=None)
    parts = [
        number(ours),
        f"{number(peers[best])} {best}" if best else "–",
        f"{ratio:.2f}×" if (ratio := by_rounds(result["samples"])) else "–",
        f"{100 * share:.0f}%" if (share := of_ceiling(result)) else "–",
    ]
    mark = " *" if max(result["foreign"], default=0.0) > MOST_FOREIGN else ""
    return " / ".join(parts) + mark


def by_rounds(samples: dict) -> float | None:
    """Median over rounds of our rate over the fastest peer's in the same round, under the same conditions."""
    rounds = zip(samples.get("S", []), *(samples[letter] for letter in samples if letter != "S"))
    return median([ours / max(known(theirs)) for ours, *theirs in rounds if ours and known(theirs)])


def of_ceiling(result: dict) -> float | None:
    """Median of our rate as a share of the machine's limit, measured in the same run."""
    return median([rate / most for rate, most in zip(known(result["samples"].get("S", [])), result["ceilings"])])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def table(results: list[dict], rows: list[str], columns: list[str]) -> str:
    """Main table, in Markdown."""
    found = {(result["row"], result["column"]): result for result in results}
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for row in rows:
        cells = [cell(found[row, column]) if (row, column) in found else "" for column in columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def every_contestant(results: list[dict], letters: list[str]) -> str:
    """One line per cell: each contestant's median and range."""
    lines = ["| | " + " | ".join(letters) + " | ceiling |", "|---|" + "--:|" * (len(letters) + 1)]
    for result in results:
        cells = []
        for letter in letters:
            samples = known(result["samples"].get(letter, []))
            spread = f" ({number(min(samples))}–{number(max(samples))})" if len(samples) > 1 else ""
            cells.append(f"{number(median(samples))}{spread}")
        cells = [f"{result['column']}, {result['row']}", *cells, number(median(result["ceilings"]))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
