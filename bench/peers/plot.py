"""docs/peers.svg: recall against time, a panel a capture."""


def draw(results, target, path):
    """Writes the plot; curves by method, the fastest first reached at the top left."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"
    from matplotlib import pyplot

    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(7 * columns, 4.5 * rows), squeeze=False)
    for axis in axes.flat[len(results) :]:
        axis.set_visible(False)
    for axis, result in zip(axes.flat, results):
        _panel(axis, result, target)
    labels = dict(pair for axis in axes.flat for pair in zip(*reversed(axis.get_legend_handles_labels())))
    figure.legend(labels.values(), labels.keys(), loc="lower center", ncol=3, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.17 / rows, 1, 1))
    figure.savefig(path, metadata={"Date": None})


STYLES = {"Flat": ("tab:gray", "s"), "IVF": ("tab:blue", "o"), "SQ8": ("tab:cyan", "v"),
          "re-scored": ("tab:purple", "^"), "HNSW": ("tab:orange", "D")}
OURS = {"ours summary": "tab:green", "ours graph": "tab:red", "ours flat": "black"}


def _class(method):
    """Curves of one class share a colour: the best of a family of list counts is its left-most curve."""
    if method in OURS:
        return method, OURS[method], "*"
    if method == "hnsw_rs":
        return method, "tab:brown", "P"
    key = next(key for key in ("re-scored", "SQ8", "HNSW", "IVF", "Flat") if key in method)
    name = {"SQ8": "IVF SQ8", "re-scored": "IVF SQ8 re-scored", "IVF": "IVF (each list count a curve)"}.get(key, key)
    return f"faiss {name}", *STYLES[key]


def _panel(axis, result, target):
    for method, points in result.points.items():
        label, colour, marker = _class(method)
        axis.plot([us for _, us in points], [recall for recall, _ in points], label=label, color=colour,
                  marker=marker, markersize=5 if label.startswith("ours") else 3,
                  linewidth=2 if label.startswith("ours") else 1)
    axis.axhline(target, color="black", linewidth=0.6, linestyle=":")
    axis.set_xscale("log")
    axis.set_ylim(0.5, 1.005)
    axis.grid(True, which="both", linewidth=0.3)
    kind = " (synthetic)" if result.synthetic else ""
    axis.set_title(f"{result.name}{kind}: {result.tokens:,} tokens, dim {result.dim}", fontsize=10)
    axis.set_xlabel("us per query head, one thread")
    axis.set_ylabel(f"recall@{result.k}")
