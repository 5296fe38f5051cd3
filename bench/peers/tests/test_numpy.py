"""What needs numpy, and of faiss nothing: recall, the synthetic capture."""

import importlib.util
import os
import tempfile
import unittest

HAVE = importlib.util.find_spec("numpy") is not None
BOTH = HAVE and importlib.util.find_spec("safetensors") is not None

if HAVE:
    import numpy as np

    import captures
    import recall
    import synthetic


@unittest.skipUnless(HAVE, "numpy is not installed")
class Recall(unittest.TestCase):
    def setUp(self):
        keys = np.eye(8, dtype=np.float32)
        queries = np.arange(8, dtype=np.float32)[None, None, :]
        self.capture = captures.Capture("c", keys, queries, 1.0, None, False)

    def of(self, ids, k=3):
        return recall.Truth(self.capture, k).recall(np.array(ids)[None, None, :])

    def test_shares(self):
        self.assertEqual(self.of([7, 6, 5]), 1)
        self.assertAlmostEqual(self.of([7, 1, 0]), 1 / 3)
        self.assertAlmostEqual(self.of([7, 7, 6]), 2 / 3)
        self.assertEqual(self.of([-1, -1, -1]), 0)

    def test_ties_count(self):
        self.capture.queries[:] = 1
        self.assertEqual(self.of([0, 1, 2]), 1)

    def test_more_wanted_than_there_is(self):
        self.assertEqual(self.of(list(range(8)), 20), 1)


@unittest.skipUnless(HAVE, "numpy is not installed")
class Synthetic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tensors, cls.meta = synthetic.generate(tokens=4096)

    def test_shape_and_metadata(self):
        t, m = self.tensors, len(self.tensors["q_pos"])
        self.assertEqual(t["k"].shape, (4096, 1, 128))
        self.assertEqual(t["v"].shape, (4096, 1, 128))
        self.assertEqual(t["q"].shape, (m, 4, 128))
        self.assertEqual({str(x.dtype) for x in t.values()}, {"float16", "int32"})
        self.assertTrue((np.diff(t["q_pos"]) > 0).all())
        self.assertTrue(all(np.isfinite(t[name]).all() for name in "kvq"))
        self.assertEqual(set(self.meta), set(captures.META))
        self.assertEqual((t["q_pos"] >= int(self.meta["eval_from"])).sum(), 256)

    def test_same_seed_same_bytes(self):
        again, _ = synthetic.generate(tokens=4096)
        self.assertTrue(all((again[name] == self.tensors[name]).all() for name in again))

    def test_best_keys_are_not_the_nearest(self):
        keys = self.tensors["k"][:, 0].astype(np.float32)
        queries = self.tensors["q"][-16:].astype(np.float32).reshape(-1, 128)
        scores = queries @ keys.T
        distances = (keys**2).sum(1) - 2 * scores
        best, nearest = np.argsort(-scores)[:, :50], np.argsort(distances)[:, :50]
        shared = np.mean([len(set(a) & set(b)) / 50 for a, b in zip(best, nearest)])
        self.assertLess(shared, 0.5)

    @unittest.skipUnless(BOTH, "safetensors is not installed")
    def test_round_trip(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s.safetensors")
            synthetic.write(path, tokens=4096)
            read = captures.read(path)
        self.assertTrue(read.synthetic)
        self.assertEqual((read.tokens, read.dim, read.group), (4096 - 1024 - 512 - 128, 128, 4))
        self.assertEqual(read.queries.shape, (256, 4, 128))


if __name__ == "__main__":
    unittest.main()
