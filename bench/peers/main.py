"""Measures the retrieval index beside faiss and hnsw_rs and writes PEERS.md and peers.svg. `run` calls it."""

import argparse
import dataclasses
import json
import os
import sys

import machine
import table
from figure import Result, restore

K, TARGET = 100, 0.95
QUICK_TOKENS = 16384


def arguments():
    """The command line; `run` passes everything on."""
    parser = argparse.ArgumentParser(prog="bench/peers/run", description=__doc__)
    parser.add_argument("captures", nargs="*", help="capture files of one KV head (default: ../shared/captures)")
    parser.add_argument("--quick", action="store_true", help="a smoke run: short captures, few settings, 0.5 GiB")
    parser.add_argument("--coarse", action="store_true", help="whole captures, but the few settings of --quick")
    parser.add_argument("--no-hnsw-rs", action="store_true", help="leave hnsw_rs out: its serial build takes longest")
    parser.add_argument("--working-set-gib", type=float, help="bytes beyond the caches (default 4, quick 0.5)")
    parser.add_argument("--threads", type=int, default=machine.threads(), help="what 'all threads' means")
    parser.add_argument("--no-synthetic", action="store_true", help="leave the synthetic capture out")
    parser.add_argument("--out", help="folder of PEERS.md and peers.svg (default: docs, quick target/peers)")
    parser.add_argument("--from-results", metavar="FILE", help="write tables and plot of a run before; measure nothing")
    options = parser.parse_args()
    default = 0.5 if options.quick else 4.0
    gib = default if options.working_set_gib is None else options.working_set_gib
    if not 0 < gib < 1024 or not 0 < options.threads <= 1024:
        parser.error("--working-set-gib is within 0 to 1024, --threads within 1 to 1024")
    options.few = options.quick or options.coarse
    options.k, options.target, options.working_set = K, TARGET, int(gib * 1024**3)
    options.repo = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    options.cache = os.environ.get("PEERS_CACHE", os.path.join(options.repo, "target"))
    options.out = options.out or os.path.join(options.repo, "target/peers" if options.quick else "docs")
    options.recollect = os.environ.get("RECOLLECT_BIN")
    return options


def find_captures(options):
    """The files to measure."""
    folder = os.path.join(options.repo, "..", "shared", "captures")
    files = options.captures
    if not files and os.path.isdir(folder):
        files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".safetensors"))
    if not files:
        sys.exit(
            "no capture files: name some, or make them with\n"
            "  recollect capture --text FILE --layers 6,18 --kv-heads 1 --context 8192 --out FOLDER"
        )
    for missing in (f for f in files if not os.path.isfile(f)):
        sys.exit(f"{missing}: no such file")
    return files


def synthetic_capture(options):
    """The synthetic capture, made once."""
    import synthetic

    tokens = QUICK_TOKENS if options.quick else synthetic.TOKENS
    path = os.path.join(options.cache, f"synthetic-{tokens}-dim{synthetic.DIM}.safetensors")
    synthetic.write(path, tokens=tokens)
    return path


def measure(options):
    """A result for every capture."""
    import captures
    import measure_faiss
    import measure_ours
    import recall

    files = find_captures(options)
    if not options.no_synthetic:
        files = [*files, synthetic_capture(options)]
    read = [captures.read(path, QUICK_TOKENS if options.quick else None) for path in files]
    for capture in read:
        result = Result(capture.name, capture.tokens, capture.dim, capture.group, capture.synthetic, options.k)
        measure_ours.measure(result, capture, options)
        truth = recall.Truth(capture, options.k)
        measure_faiss.measure(result, capture, truth, options)
        yield result


def command(options):
    """What was run, without folders."""
    names = [os.path.basename(path) for path in options.captures]
    given = {"quick", "coarse", "no_synthetic", "no_hnsw_rs"}
    flags = ["--" + name.replace("_", "-") for name in sorted(given) if getattr(options, name)]
    if options.working_set_gib is not None:
        flags.append(f"--working-set-gib {options.working_set_gib:g}")
    return " ".join(["bench/peers/run", *flags, *names])


def write(results, about, options):
    """PEERS.md and peers.svg."""
    import plot

    shown = argparse.Namespace(**about)
    os.makedirs(options.out, exist_ok=True)
    with open(os.path.join(options.out, "PEERS.md"), "w", encoding="utf-8") as file:
        file.write(table.document(results, shown, about["machine"]))
    plot.draw(results, shown.target, os.path.join(options.out, "peers.svg"))


def main():
    """Measures and writes; what was measured is kept in the cache after every capture."""
    options = arguments()
    if options.from_results:
        with open(options.from_results, encoding="utf-8") as file:
            kept = json.load(file)
        return write([restore(r) for r in kept["results"]], kept["about"], options)
    if not options.recollect:
        sys.exit("RECOLLECT_BIN is not set; start this through bench/peers/run")
    import faiss
    import faiss_time

    kept = ("quick", "target", "working_set", "threads")
    about = {name: getattr(options, name) for name in kept}
    version = f"{faiss.__version__} ({faiss.get_compile_options().strip()})"
    about |= {"command": command(options), "machine": machine.describe(), "faiss": version}
    about["empty_call"] = faiss_time.empty_call()
    results = []
    for result in measure(options):
        results.append(result)
        with open(os.path.join(options.cache, "results.json"), "w", encoding="utf-8") as file:
            json.dump({"about": about, "results": [dataclasses.asdict(r) for r in results]}, file)
    write(results, about, options)
    print(table.ratio_table(results, argparse.Namespace(**about)))


if __name__ == "__main__":
    main()
