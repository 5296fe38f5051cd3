"""The time of searches of faiss.

A decode step is one call with the rows of its KV group: steps depend on each other, so nothing may be batched across
them. Calls go to the wrapped C++ function with buffers made beforehand; `empty_call` says what is left of Python and faiss's
own fixed cost.
"""

import threading
import time

import faiss
import numpy as np

PASSES = 4
"""Timed passes over the decode queries; the fastest counts."""
TRIAL = 32
"""Steps on which the ways of calling are compared."""
BLAS_FROM = (20, 1)
"""Rows from which faiss scores through BLAS: its default, and always. The faster counts."""


class Steps:
    """The decode steps of a capture, ready to be asked of indexes."""

    def __init__(self, queries, k):
        self.count, self.group = queries.shape[:2]
        self.k, self.queries = k, queries
        self.scores = np.empty((self.count, self.group, k), dtype=np.float32)
        self.ids = np.empty((self.count, self.group, k), dtype=np.int64)
        buffers = zip(queries, self.scores, self.ids)
        self.pointers = [tuple(map(faiss.swig_ptr, each)) for each in buffers]

    def ask(self, calls, first, last, turn):
        """Steps first..last in order; step i asks index turn + i, round robin."""
        group, k, n = self.group, self.k, len(calls)
        for i in range(first, last):
            queries, scores, ids = self.pointers[i]
            calls[(turn + i) % n](group, queries, k, scores, ids)

    def _inside(self, calls, count, turn, threads):
        """Wall time with `threads` OpenMP threads inside a call."""
        faiss.omp_set_num_threads(threads)
        start = time.perf_counter()
        self.ask(calls, 0, count, turn)
        return time.perf_counter() - start

    def _beside(self, calls, count, turn, threads):
        """Wall time with `threads` calls side by side, each on one thread (faiss releases Python's lock)."""
        ready = threading.Barrier(threads)
        share = -(-count // threads)
        began, ended = [0.0] * threads, [0.0] * threads

        def work(t):
            faiss.omp_set_num_threads(1)
            ready.wait()
            began[t] = time.perf_counter()
            self.ask(calls, t * share, min(count, (t + 1) * share), turn)
            ended[t] = time.perf_counter()

        workers = [threading.Thread(target=work, args=(t,)) for t in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return max(ended) - min(began)

    def us(self, indexes, threads=1, passes=PASSES):
        """Microseconds per query head of the fastest pass. Every way of calling is tried on some steps, twice; the
        fastest is timed on all."""
        calls = [index.search_c for index in indexes]
        turn = 0

        def timed(way, rows, count):
            nonlocal turn
            faiss.cvar.distance_compute_blas_threshold = rows
            took = way(calls, count, turn, threads)
            turn += count
            return took

        ways = [(way, rows) for way in ([self._inside, self._beside] if threads > 1 else [self._inside])
                for rows in BLAS_FROM]
        trial = min(self.count, max(threads, TRIAL))
        way, rows = min(ways, key=lambda w: min(timed(*w, trial) for _ in range(2)))
        best = min(timed(way, rows, self.count) for _ in range(passes))
        faiss.cvar.distance_compute_blas_threshold = BLAS_FROM[0]
        return best * 1e6 / (self.count * self.group)


def empty_call():
    """Microseconds of a call with three rows on an index of two short keys: about what a call costs without a search."""
    index = faiss.index_factory(4, "Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(np.ones((2, 4), dtype=np.float32))
    steps = Steps(np.ones((1000, 3, 4), dtype=np.float32), 1)
    return steps.us([index]) * 3
