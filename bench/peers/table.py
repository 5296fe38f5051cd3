"""docs/PEERS.md. Pure."""

from figure import COLUMNS
import ratios


def number(value, digits=3):
    """Three figures; a dash for what was not measured."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def markdown(head, rows):
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def titles(options):
    """What the time columns are called."""
    size = f"{options.working_set / 1024**3:g} GiB"
    threads = f"{options.threads} threads"
    return dict(zip(COLUMNS, ("1 thread", threads, f"{size}, 1 thread", f"{size}, {threads}")))


def capture_table(result, options):
    """The methods of one capture."""
    names = titles(options)
    head = ["method", "setting", f"recall@{result.k}", "output error", "rows scored"]
    head += [f"us, {names[c]}" for c in COLUMNS] + ["index bytes/token", "build us/token"]
    rows = []
    for f in result.figures:
        missed = "" if f.reached else " (missed)"
        recall = "-" if f.recall is None else f"{f.recall:.3f}" + missed
        error = "-" if f.error is None else f"{f.error:.4f}" + missed
        times = [number(f.us.get(c)) for c in COLUMNS]
        rows.append([f.name, f.setting, recall, error, number(f.keys, 4), *times, number(f.bytes), number(f.build_us)])
    about = f"{result.tokens:,} tokens indexed, dim {result.dim}, {result.group} query heads"
    if result.synthetic:
        about = "**Synthetic**, out of distribution, not from a model: " + about
    if result.oracle_error is not None:
        about += f"; output error of the exact top-{result.k} without estimate: {result.oracle_error:.4f}"
    return f"## {result.name}\n\n{about}.\n\n{markdown(head, rows)}"


def ratio_table(results, options):
    """Ours against faiss."""
    names = titles(options)
    head = ["times faster", "where", *(r.name + (" (synthetic)" if r.synthetic else "") for r in results)]
    rows = []
    for what, column, each, mean in ratios.table(results):
        counted = sum(value is not None for value in each)
        over = "" if counted == len(results) else f" ({counted} of {len(results)})"
        rows.append([what, names[column], *(number(v) for v in each), number(mean) + over])
    return markdown([*head, "geometric mean"], rows)


NOTES = """\
- Decode queries only; the index covers the tokens between sink and window; inner product; recall against exact search, a
  key as good as the last of the best counts. Each method at its cheapest setting that reaches recall {target:g} on these
  queries ("tuned": faiss by bisection to 3 % of its parameter, ours by a grid and a finer one about its best); "auto,
  calibrated" is our index as its build set it, without a look at them.
- A time is the wall time of the fastest pass over all decode queries, divided by queries and query heads. A decode step is
  one call with the query heads of the KV group; no call spans steps. Ours includes the summary, exact attention over the
  values of the selection and, with "+ estimate", the estimate of the remainder; faiss and hnsw_rs only find ids (hnsw_rs's
  finalists are attended to as well, since it runs inside `recollect`).
- faiss is called from Python through its C++ functions with buffers made beforehand (a call on an index of two keys took
  {empty:.1f} us here; it is not subtracted); it scores with and without BLAS, and with several threads calls run side by side
  or its own threads inside a call: the fastest counts.
- Working set: copies of the index (of ours, KV and index) in memory of their own, asked in turn, together of the stated
  size; the fastest index of each faiss kind that reaches the recall. hnsw_rs cannot be copied and is left out.
- A width of ours is for k tokens: for fewer it shrinks with the square root of their share, for more it grows with
  its power 0.6.
- "rows scored": keys, and centroids or summary rows, per query head, where the method counts them. Index bytes: faiss holds
  the keys as f32 or codes; ours do not include the KV, which is kept as f16 anyway. "missed": the best that was reached.
- Build times: one thread; of ours with its calibration."""


def document(results, options, machine):
    """The whole page."""
    warning = "**A smoke run (`--quick`: short captures, few settings, small working set): not figures to cite.**\n\n"
    plot = "![recall against time](peers.svg)"
    parts = [
        "# Retrieval beside its peers",
        (warning if options.quick else "") + f"`{options.command}` on {machine}; faiss {options.faiss}. Times are "
        "microseconds per query head.",
        "## Ratios\n\n" + ratio_table(results, options),
        plot,
        *(capture_table(result, options) for result in results),
        "## How it was measured\n\n" + NOTES.format(target=options.target, empty=options.empty_call),
    ]
    return "\n\n".join(parts) + "\n"
