"""faiss on one capture: every family at its cheapest setting of recall 0.95."""

import sys

import faiss

import faiss_side
import faiss_time
import sweep
from figure import Figure


def measure(result, capture, truth, options):
    """Adds figures and points of every family to the result."""
    steps = faiss_time.Steps(capture.queries, truth.k)
    found = []
    for family in faiss_side.families(capture.tokens, options.few):
        print(f"{capture.name}: {family.name}", file=sys.stderr)
        index, seconds = faiss_side.build(family, capture.keys)
        best, points = _sweep(family, index, steps, truth, options)
        chosen = best or max(points, key=lambda p: p.recall)
        faiss_side.set_value(family, index, chosen.value)
        figure = Figure(
            side="faiss",
            kind=family.kind,
            name=family.name,
            setting=f"{family.parameter} {chosen.value}" if family.parameter else "-",
            reached=best is not None,
            recall=chosen.recall,
            keys=chosen.keys,
            bytes=faiss_side.size(index) / capture.tokens,
            build_us=seconds * 1e6 / capture.tokens,
        )
        figure.us["one"] = min(chosen.us, steps.us([index]))
        if best and options.threads > 1:
            figure.us["all"] = steps.us([index], options.threads)
        result.points[family.name] = [[p.recall, p.us] for p in points]
        result.figures.append(figure)
        found.append((figure, family, index, chosen.value))
    for figure, family, index, value in _best_of_kinds(found):
        print(f"{capture.name}: {family.name}, working set", file=sys.stderr)
        _working_set(figure, family, index, value, steps, options)


def _sweep(family, index, steps, truth, options):
    def evaluate(value):
        faiss_side.set_value(family, index, value)
        faiss.omp_set_num_threads(1)
        faiss_side.forget()
        steps.ask([index.search_c], 0, steps.count, 0)
        keys = faiss_side.scored() / (steps.count * steps.group)
        recall = truth.recall(steps.ids)
        if family.kind == "Flat":
            keys = index.ntotal
        return sweep.Point(value, recall, steps.us([index], passes=1), keys or None)

    return sweep.narrowest(evaluate, family.first, family.last, options.target)


def _best_of_kinds(found):
    """The fastest of each kind among those that reach the target."""
    for kind in dict.fromkeys(family.kind for _, family, _, _ in found):
        same = [each for each in found if each[1].kind == kind and each[0].reached]
        if same:
            yield min(same, key=lambda each: each[0].us["one"])


def _working_set(figure, family, index, value, steps, options):
    """The same search over as many copies of the index as make up the working set, asked in turn."""
    count = max(1, -(-options.working_set // faiss_side.size(index)))
    copies = [index] + [faiss.clone_index(index) for _ in range(count - 1)]
    for copy in copies:
        faiss_side.set_value(family, copy, value)
    figure.us["set_one"] = steps.us(copies)
    if options.threads > 1:
        figure.us["set_all"] = steps.us(copies, options.threads)
