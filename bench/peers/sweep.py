"""Looking for the cheapest setting of a search that meets a target. Pure."""

import dataclasses


@dataclasses.dataclass
class Point:
    """What one value of a search parameter gave."""

    value: int
    recall: float
    us: float
    """Per query head, one thread."""
    keys: float | None = None
    """Keys scored per query head, centroids included; None when it is not known."""


def grid(first, last, factor):
    """Whole numbers from `first` to `last`, each about `factor` times the one before."""
    values, at = [], float(first)
    while round(at) < last:
        if not values or round(at) > values[-1]:
            values.append(round(at))
        at *= factor
    return values + [last]


def between(low, high, most=8):
    """At most `most` whole numbers strictly between two, about evenly spaced by factor."""
    if high - low <= most + 1:
        return list(range(low + 1, high))
    steps = range(1, most + 1)
    return sorted({round(low * (high / low) ** (i / (most + 1))) for i in steps} - {low, high})


def bracket(rows, value, good):
    """(the largest value that is not good below the smallest that is, or None; that smallest one, or None)."""
    high = min((value(r) for r in rows if good(r)), default=None)
    low = max((value(r) for r in rows if not good(r) and (high is None or value(r) < high)), default=None)
    return low, high


def narrowest(evaluate, first, last, target, tolerance=0.03):
    """The points of a search for the smallest value in first..=last whose recall reaches `target`: doubling, then
    bisection until the bracket is within `tolerance` of its upper end, then one step beyond for the plot.

    Returns (the best point or None, all points by value). Recall is taken to grow with the value."""
    points = {}

    def at(value):
        if value not in points:
            points[value] = evaluate(value)
        return points[value]

    bad, good = first - 1, first
    while at(good).recall < target and good < last:
        bad, good = good, min(good * 2, last)
    if at(good).recall < target:
        return None, [points[v] for v in sorted(points)]
    while good - bad > max(1, int(good * tolerance)):
        middle = (good + bad) // 2
        if at(middle).recall >= target:
            good = middle
        else:
            bad = middle
    at(min(good * 2, last))
    return points[good], [points[v] for v in sorted(points)]


def cheapest(rows, good, cost):
    """The row of least cost among those that are good; None when none is."""
    return min(filter(good, rows), key=cost, default=None)
