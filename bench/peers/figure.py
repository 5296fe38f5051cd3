"""What one method came to on one capture."""

import dataclasses

COLUMNS = ("one", "all", "set_one", "set_all")
"""Where times were taken: one thread, all threads, and both on the working set beyond the caches."""


@dataclasses.dataclass
class Figure:
    """The chosen setting of one method."""

    side: str
    """faiss, hnsw_rs or ours."""
    kind: str
    """Flat, IVF, ... or the kind of our index."""
    name: str
    setting: str
    aim: str = "recall"
    """What the setting was chosen for: `recall`, or `error` (the output error of the exact best k)."""
    tuned: bool = True
    """Chosen on the very queries that are measured; otherwise as the build calibrated it."""
    reached: bool = False
    """Whether the aim is reached. If not, the setting that came nearest is given."""
    recall: float | None = None
    error: float | None = None
    keys: float | None = None
    """Key and centroid rows scored per query head; None: not known."""
    bytes: float | None = None
    """Index bytes per token; of faiss with its copy of the keys, of ours without the KV."""
    build_us: float | None = None
    """Per token, one thread."""
    us: dict = dataclasses.field(default_factory=dict)
    """Microseconds per query head by column."""


@dataclasses.dataclass
class Result:
    """A capture with all of its figures."""

    name: str
    tokens: int
    dim: int
    group: int
    synthetic: bool
    k: int
    oracle_error: float | None = None
    """Output error of the exact best k without an estimate."""
    figures: list = dataclasses.field(default_factory=list)
    points: dict = dataclasses.field(default_factory=dict)
    """Method to [recall, us] pairs, for the plot."""


def restore(data):
    """A result from what `dataclasses.asdict` made of it."""
    return Result(**{**data, "figures": [Figure(**figure) for figure in data["figures"]]})
