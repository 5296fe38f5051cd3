"""faiss: its indexes, with one search parameter each."""

import dataclasses
import time

import faiss

@dataclasses.dataclass
class Family:
    """A kind of index with the parameter that is swept."""

    kind: str
    """Flat, IVF, IVF SQ8, IVF SQ8 re-scored, HNSW."""
    factory: str
    parameter: str | None
    first: int = 1
    last: int = 1
    rescore: float | None = None
    """Fetch this many times k and score those again exactly."""

    @property
    def name(self):
        """What tables call it."""
        return f"faiss {self.factory}" + (f", {self.rescore:g}x re-scored" if self.rescore else "")


def families(tokens, quick):
    """What is compared at this number of tokens."""
    found = [Family("Flat", "Flat", None)]
    for per_list in (128, 64) if quick else (512, 128, 64, 32):
        lists = max(1, tokens // per_list)
        found.append(Family("IVF", f"IVF{lists},Flat", "nprobe", 1, lists))
        found.append(Family("IVF SQ8", f"IVF{lists},SQ8", "nprobe", 1, lists))
        found.append(Family("IVF SQ8 re-scored", f"IVF{lists},SQ8", "nprobe", 1, lists, 1.5))
    last = min(tokens, 1024 if quick else 8192)
    found.append(Family("HNSW", "HNSW32,Flat", "efSearch", 100, last))
    return found


def build(family, keys):
    """The index on one thread, and the seconds it took."""
    faiss.omp_set_num_threads(1)
    start = time.perf_counter()
    index = faiss.index_factory(keys.shape[1], family.factory, faiss.METRIC_INNER_PRODUCT)
    if family.kind == "HNSW":
        index.hnsw.efConstruction = 128
    if family.rescore:
        index = faiss.IndexRefineFlat(index)
    index.train(keys)
    index.add(keys)
    return index, time.perf_counter() - start


def size(index):
    """Bytes of the index, keys included."""
    return len(faiss.serialize_index(index))


def set_value(family, index, value):
    """Sets the swept parameter."""
    if family.rescore:
        index.k_factor = family.rescore
        index = faiss.downcast_index(index.base_index)
    if family.parameter == "nprobe":
        index.nprobe = value
    elif family.parameter == "efSearch":
        index.hnsw.efSearch = value


def scored():
    """Keys and centroids that faiss counted since `forget`."""
    return faiss.cvar.indexIVF_stats.ndis + faiss.cvar.hnsw_stats.ndis


def forget():
    """Sets the counts of `scored` to zero."""
    faiss.cvar.indexIVF_stats.reset()
    faiss.cvar.hnsw_stats.reset()
