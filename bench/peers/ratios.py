"""How many times faster: ours against faiss, capture by capture, and the geometric mean. Pure."""

import math

from figure import COLUMNS

ROWS = (
    ("recall", True, None, "recall 0.95, tuned like faiss, against the best of faiss"),
    ("recall", False, None, "recall 0.95, auto as calibrated at build, against the best of faiss"),
    ("recall", True, "Flat", "recall 0.95, tuned like faiss, against faiss Flat"),
    ("error", True, None, "output error of the exact top-k, tuned, against the best of faiss fetching k"),
    ("error", False, None, "output error of the exact top-k, auto as calibrated, against the best of faiss fetching k"),
)
"""(aim, tuned, kind of faiss or the best of all, what the row is)."""


def fastest(figures, column):
    """The least time in a column among those that reached their aim; None when none has one."""
    return min((f.us[column] for f in figures if f.reached and column in f.us), default=None)


def ratio(result, row, column):
    """Time of faiss over time of ours; None when either did not reach its aim or was not measured."""
    aim, tuned, kind, _ = row
    theirs = fastest([f for f in result.figures if f.side == "faiss" and kind in (None, f.kind)], column)
    mine = [f for f in result.figures if f.side == "ours" and f.aim == aim and f.tuned == tuned]
    ours = fastest(mine, column)
    return theirs / ours if theirs and ours else None


def geometric_mean(values):
    """Of those that are there; None of none."""
    values = [v for v in values if v is not None]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def table(results):
    """For every row and column: (what, column, ratios by capture, geometric mean)."""
    for row in ROWS:
        for column in COLUMNS:
            each = [ratio(result, row, column) for result in results]
            if any(value is not None for value in each):
                yield row[3], column, each, geometric_mean(each)
