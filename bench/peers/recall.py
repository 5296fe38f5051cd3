"""Exact neighbours by inner product, and the recall of what a search found."""

SLACK = 1e-6
"""Logits this much below the last of the best count: f32 scores may swap neighbours in rank."""


class Truth:
    """The exact scores that the best `k` keys of every query head reach."""

    def __init__(self, capture, k):
        import numpy as np

        self.capture, self.k = capture, min(k, capture.tokens)
        keys = capture.keys.astype(np.float64)
        rows = capture.queries.reshape(-1, capture.dim).astype(np.float64)
        self.least = np.empty(len(rows))
        for begin in range(0, len(rows), 64):
            scores = rows[begin : begin + 64] @ keys.T
            best = np.partition(scores, capture.tokens - self.k, axis=1)[:, capture.tokens - self.k]
            self.least[begin : begin + 64] = best

    def recall(self, ids):
        """Mean share of the best `k` among `ids`, [m, group, k]; -1 stands for nothing found."""
        import numpy as np

        capture = self.capture
        rows = capture.queries.reshape(-1, capture.dim).astype(np.float64)
        found = 0
        for row, chosen, least in zip(rows, ids.reshape(len(rows), -1), self.least):
            chosen = np.unique(chosen[chosen >= 0])
            scores = capture.keys[chosen].astype(np.float64) @ row
            found += min(self.k, int((scores * capture.scale >= least * capture.scale - SLACK).sum()))
        return found / (len(rows) * self.k)
