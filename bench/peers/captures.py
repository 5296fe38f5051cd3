"""Capture files: keys and queries of one KV head, read as `recollect bench retrieval` reads them."""

import dataclasses
import os

META = ("model", "layer", "scale", "rope_theta", "sink", "window", "eval_from", "text")


@dataclasses.dataclass
class Capture:
    """One KV head: what an index is built over, and what it is asked."""

    path: str
    keys: object
    """f32 [n, dim]: the indexed tokens."""
    queries: object
    """f32 [m, group, dim]: the decode queries, all query heads of the group."""
    scale: float
    limit: int | None
    """Tokens that the file was cut to, or None."""
    synthetic: bool

    @property
    def name(self):
        """What tables call it: the file's name without folder and ending."""
        return os.path.basename(self.path).removesuffix(".safetensors")

    @property
    def tokens(self):
        """Indexed tokens."""
        return self.keys.shape[0]

    @property
    def dim(self):
        """Elements of a key."""
        return self.keys.shape[1]

    @property
    def group(self):
        """Query heads per KV head."""
        return self.queries.shape[1]


def indexed(meta, tokens, limit=None):
    """The first and the last indexed token plus one, and the first decode position: as `--limit-tokens` cuts."""
    sink, window, eval_from = (int(meta[name]) for name in ("sink", "window", "eval_from"))
    if limit is not None and limit < tokens:
        evaluated = tokens - eval_from
        if limit <= sink + window + evaluated:
            raise ValueError(f"a limit of {limit} tokens leaves nothing to index")
        tokens, eval_from = limit, limit - evaluated
    if sink + window >= eval_from or eval_from > tokens:
        raise ValueError(f"sink {sink}, window {window}, eval_from {eval_from} do not fit {tokens} tokens")
    return sink, eval_from - window, eval_from, tokens


def read(path, limit=None):
    """Reads a capture of one KV head, cut to its first `limit` tokens."""
    import numpy as np
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        meta = file.metadata() or {}
        missing = [name for name in META if name not in meta]
        if missing:
            raise ValueError(f"{path}: metadata lacks {', '.join(missing)}")
        k, q, positions = (file.get_tensor(name) for name in ("k", "q", "q_pos"))
    if k.ndim != 3 or k.shape[1] != 1:
        raise ValueError(f"{path}: k is {list(k.shape)}; captures of one KV head are compared")
    begin, end, eval_from, tokens = indexed(meta, k.shape[0], limit)
    decode = (positions >= eval_from) & (positions < tokens)
    if not decode.any():
        raise ValueError(f"{path}: no query from position {eval_from} on")
    return Capture(
        path=path,
        keys=np.ascontiguousarray(k[begin:end, 0], dtype=np.float32),
        queries=np.ascontiguousarray(q[decode], dtype=np.float32),
        scale=float(meta["scale"]),
        limit=limit if limit is not None and limit < k.shape[0] else None,
        synthetic=meta["model"] == "synthetic",
    )
