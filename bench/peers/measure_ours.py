"""Our index, and hnsw_rs through the same command, on one capture."""

import sys

import sweep
from figure import Figure
from recollect_side import Recollect, copies_for, scored

KINDS = ("summary", "graph", "flat")
CALIBRATED = "calibrated"


def measure(result, capture, options):
    """Adds figures and points of every method to the result."""
    ask = Recollect(options.recollect, capture, result.k)
    for_recall = _recall(result, ask, options)
    for_error = _error(result, ask, for_recall, options)
    for rows, estimate, aim in [(for_recall, "off", "recall"), (for_error, "on", "error")]:
        for row, tuned in rows:
            _log(capture, f"{row['kind']}, {aim}, threads and working set")
            figure = _figure(row, row["method"], aim, tuned, options)
            again = lambda **how: _again(ask, row, estimate, **how)
            # Anew: the least of many times in a sweep is luck in part.
            figure.us["one"] = again()
            if options.threads > 1:
                figure.us["all"] = again(threads=options.threads)
            copies = copies_for(row, options.working_set)
            figure.us["set_one"] = again(copies=copies)
            if options.threads > 1:
                figure.us["set_all"] = again(copies=copies, threads=options.threads)
            result.figures.append(figure)
    if not options.no_hnsw_rs:
        _hnsw(result, ask, options)


def _log(capture, what):
    print(f"{capture.name}: {what}", file=sys.stderr)


def _again(ask, row, estimate, **how):
    """The time of a setting that was chosen before, under other circumstances."""
    rows = ask.rows([row["method"]], [row["asked_width"]], [row["asked_budget"]], estimate, **how)
    return rows[0]["wall_us_per_query"]


def _figure(row, method, aim, tuned, options):
    width = "" if row["kind"] == "flat" else f", width {row['width']}"
    setting = f"K {row['asked_budget']}{width}"
    good = row["recall_at_k"] >= options.target if aim == "recall" else row["error_reached"]
    how = row["kind"] if tuned else f"auto ({row['kind']}), calibrated"
    return Figure(
        side="hnsw_rs" if method == "hnsw" else "ours",
        kind=row["kind"],
        name="hnsw_rs" if method == "hnsw" else f"ours {how}" + (" + estimate" if aim == "error" else ""),
        setting=setting,
        aim=aim,
        tuned=tuned,
        reached=good,
        recall=row["recall_at_k"] if aim == "recall" else None,
        error=row["output_error_mean"] if aim == "error" else None,
        keys=scored(row),
        bytes=row["index_bytes_per_token"],
        build_us=row["build_us_per_token"],
        us={"one": row["wall_us_per_query"]},
    )


def _widths(kind, tokens, options):
    factor = 1.5 if options.few else 1.15
    if kind == "summary":
        return sweep.grid(8, max(16, tokens // 64), factor)
    return sweep.grid(64, max(128, min(tokens // 16, 1024 if options.few else 4096)), factor)


def _recall(result, ask, options):
    """(row, whether tuned) of the cheapest setting of recall 0.95 of any kind, and of `auto` as it was calibrated."""
    _log(ask.capture, "ours, recall")
    auto = ask.rows(["auto"], [CALIBRATED])[0]
    good = lambda r: r["recall_at_k"] >= options.target
    cost = lambda r: r["wall_us_per_query"]
    rows = {}
    for kind in KINDS:
        rows[kind] = ask.rows([kind], [1] if kind == "flat" else [CALIBRATED, *_widths(kind, result.tokens, options)])
    # The grid is wider than what the search for faiss's setting ends at: looked at more closely where it is cheapest.
    best = sweep.cheapest(sum(rows.values(), []), good, cost)
    low, high = sweep.bracket(rows[best["kind"]], lambda r: r["width"], good)
    if best["kind"] != "flat" and low is not None and (closer := sweep.between(low, high)):
        rows[best["kind"]] += ask.rows([best["kind"]], closer)
        best = sweep.cheapest(sum(rows.values(), []), good, cost)
    for kind, of_kind in rows.items():
        result.points[f"ours {kind}"] = sorted([r["recall_at_k"], cost(r)] for r in of_kind)
    return [(best, True), (auto, False)]


def _error(result, ask, for_recall, options):
    """The same for the output error of the exact best k: fewer exact tokens, and the estimate."""
    _log(ask.capture, "ours, output error")
    budgets = [5, 10, 20, 50, 100, 200] if options.few else [2, 5, *range(10, 101, 10), 125, 150, 200]
    budgets = sorted({*budgets, result.k})
    (best, _), (auto, _) = for_recall
    factor = 2.0 if options.few else 1.35
    swept = [] if best["kind"] == "flat" else sweep.grid(max(4, best["width"] // 16), best["width"] * 2, factor)
    kinds = {best["kind"]: [CALIBRATED, *swept]}
    kinds.setdefault(auto["kind"], [CALIBRATED])
    rows = []
    for kind, widths in kinds.items():
        rows += ask.rows([kind], widths, budgets, "on")
    result.oracle_error = next(r["oracle_topk_error_mean"] for r in rows if r["asked_budget"] == result.k)
    for row in rows:
        row["error_reached"] = row["output_error_mean"] <= result.oracle_error
    good = lambda r: r["error_reached"]
    nearest = lambda some: min(some, key=lambda r: r["output_error_mean"])
    cost = lambda r: r["wall_us_per_query"]
    tuned = sweep.cheapest(rows, good, cost) or nearest(rows)
    if tuned["kind"] != "flat":
        rows += _closer(ask, tuned, budgets)
        for row in rows:
            row["error_reached"] = row["output_error_mean"] <= result.oracle_error
        tuned = sweep.cheapest(rows, good, cost) or nearest(rows)
    same = [r for r in rows if r["kind"] == auto["kind"] and r["asked_width"] == CALIBRATED]
    fewest = sweep.cheapest(same, good, lambda r: r["asked_budget"]) or nearest(same)
    return [(tuned, True), (fewest, False)]


def _closer(ask, row, budgets):
    """Rows of settings about a good one: budgets down to the one below it on the grid, widths down to half of it."""
    budget, width = row["asked_budget"], row["width"]
    below = max((b for b in budgets if b < budget), default=0)
    near = [*sweep.between(below, budget, 3), budget] if below else [budget]
    return ask.rows([row["kind"]], [*sweep.between(max(1, width // 2), width, 4), width], near, "on")


def _hnsw(result, ask, options):
    """hnsw_rs; its graph cannot be copied, so it has no working set."""
    _log(ask.capture, "hnsw_rs")
    last = min(result.tokens // 8, 1024 if options.few else 8192)
    rows = ask.rows(["hnsw"], sweep.grid(100, last, 2 if options.few else 1.3))
    result.points["hnsw_rs"] = sorted([r["recall_at_k"], r["wall_us_per_query"]] for r in rows)
    good = lambda r: r["recall_at_k"] >= options.target
    best = sweep.cheapest(rows, good, lambda r: r["wall_us_per_query"])
    figure = _figure(best or max(rows, key=lambda r: r["recall_at_k"]), "hnsw", "recall", True, options)
    if best and options.threads > 1:
        figure.us["all"] = _again(ask, best, "off", threads=options.threads)
    result.figures.append(figure)
