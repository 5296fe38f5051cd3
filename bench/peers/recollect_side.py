"""`recollect bench retrieval`: running it and reading its rows."""

import dataclasses
import json
import subprocess
import sys


@dataclasses.dataclass
class Recollect:
    """The binary, and the capture that it is asked about."""

    binary: str
    capture: object
    k: int

    def rows(self, methods, widths, budgets=None, estimate="off", threads=1, copies=1):
        """A row of JSON for every method, budget and width; one build a method."""
        command = [self.binary, "bench", "retrieval", "--json", "--capture", self.capture.path]
        command += ["--method", ",".join(methods), "--width", ",".join(map(str, widths))]
        command += ["--budget", ",".join(map(str, budgets or [self.k])), "--estimate", estimate]
        command += ["--threads", str(threads), "--copies", str(copies)]
        if self.capture.limit:
            command += ["--limit-tokens", str(self.capture.limit)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
        if done.returncode:
            raise RuntimeError(f"recollect bench retrieval ended with {done.returncode}")
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
        # Budgets outside, widths inside: the order in which they were asked.
        asked = [(b, w) for _ in methods for b in budgets or [self.k] for w in widths]
        if len(asked) != len(rows):
            raise RuntimeError(f"{len(rows)} rows where {len(asked)} were asked for")
        for row, (budget, width) in zip(rows, asked):
            row["asked_budget"], row["asked_width"] = budget, width
        return rows


def scored(row):
    """Key and summary rows scored per query head."""
    return (row["scanned_fraction"] + row["summary_fraction"]) * row["tokens"]


def copies_for(row, bytes_wanted):
    """How many copies of KV and index make up a working set."""
    per_copy = (row["index_bytes_per_token"] + row["kv_bytes_per_token"]) * row["tokens"]
    return max(1, -(-int(bytes_wanted) // int(per_copy)))
