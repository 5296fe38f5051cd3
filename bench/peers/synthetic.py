"""A synthetic capture whose queries lie off the distribution of its keys. Not from a model, and said so wherever it
appears.

Keys come from a mixture of clusters with a common mean and unequal variance per direction; topics, subsets of the
clusters, change along the text. A query points, through a linear map of its head that is only partly the identity, to
the clusters of a topic; its mean and covariance differ from those of the keys and it drifts with position. So the keys of
largest inner product are not the nearest ones."""

import sys

SEED, TOKENS, DIM, GROUP = 20240915, 65536, 128, 4
SINK, WINDOW, EVALUATED, STRIDE = 128, 512, 1024, 4
CLUSTERS, PER_TOPIC, TOPIC_TOKENS = 256, 24, 2048


def generate(tokens=TOKENS, dim=DIM, group=GROUP, seed=SEED):
    """Tensors and metadata of a capture: k, v [tokens, 1, dim], q [m, group, dim], q_pos [m]."""
    import numpy as np

    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    spread = (1 + np.arange(dim)) ** -0.35 * np.sqrt(dim / np.sum((1 + np.arange(dim)) ** -0.7))
    shaped = lambda count: (rng.standard_normal((count, dim)) * spread) @ basis
    common = 3.0 * basis[5] * np.sqrt(dim) / 4
    centres = shaped(CLUSTERS)

    topics = np.stack([rng.permutation(CLUSTERS)[:PER_TOPIC] for _ in range(-(-tokens // TOPIC_TOKENS))])
    topic_of = np.arange(tokens) // TOPIC_TOKENS
    cluster = topics[topic_of, rng.integers(0, PER_TOPIC, tokens)]
    length = np.exp(0.15 * rng.standard_normal((CLUSTERS, 1)))[cluster]
    keys = common + length * (0.8 * centres[cluster] + 0.7 * shaped(tokens))
    values = 0.5 * rng.standard_normal((CLUSTERS, dim))[cluster] + rng.standard_normal((tokens, dim))

    eval_from = tokens - EVALUATED
    before = np.sort(rng.choice(np.arange(SINK, eval_from), (eval_from - SINK) // STRIDE, replace=False))
    after = np.sort(rng.choice(np.arange(eval_from, tokens), min(256, EVALUATED), replace=False))
    positions = np.concatenate([before, after])
    drift = np.outer(np.sin(positions / tokens * 6.0), basis[9]) + np.outer(positions / tokens, basis[17])
    queries = np.empty((len(positions), group, dim))
    for head in range(group):
        turned = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        # Any earlier topic may be asked for, the own one most often.
        topic = np.where(rng.random(len(positions)) < 0.5, topic_of[positions],
                         rng.integers(0, topic_of[positions] + 1))
        aim = centres[topics[topic, rng.integers(0, PER_TOPIC, len(positions))]]
        mean = -1.2 * common + 4.0 * basis[20 + head]
        noise = rng.standard_normal((len(positions), dim)) * spread[::-1]
        queries[:, head] = mean + 0.5 * aim + 0.6 * aim @ turned + 0.5 * noise @ basis + 3.0 * drift
    half = lambda x: np.ascontiguousarray(x, dtype=np.float16)
    tensors = {
        "k": half(keys[:, None]),
        "v": half(values[:, None]),
        "q": half(queries),
        "q_pos": positions.astype(np.int32),
    }
    meta = {
        "model": "synthetic", "layer": "0", "scale": str(dim**-0.5), "rope_theta": "0", "sink": str(SINK),
        "window": str(WINDOW), "eval_from": str(eval_from),
        "text": f"synthetic, out of distribution, seed {seed}",
    }
    return tensors, meta


def write(path, **options):
    """Writes the capture to a file."""
    from safetensors.numpy import save_file

    tensors, meta = generate(**options)
    save_file(tensors, path, metadata=meta)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: synthetic.py FILE")
    write(sys.argv[1])
