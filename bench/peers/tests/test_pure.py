"""What needs neither numpy nor faiss: sweeps, ratios, tables, the range of a capture."""

import argparse
import unittest

import captures
import ratios
import sweep
import table
from figure import Figure, Result, restore


def figure(side, us, reached=True, **more):
    return Figure(side=side, kind=more.pop("kind", "IVF"), name=f"{side} x", setting="nprobe 3", reached=reached,
                  recall=0.951, us={"one": us}, **more)


def result(name, *figures, synthetic=False):
    return Result(name, 1000, 64, 3, synthetic, 100, 0.25, list(figures))


OPTIONS = argparse.Namespace(working_set=4 << 30, threads=2, target=0.95, quick=False, command="run", faiss="1",
                             empty_call=2.0)


class Sweep(unittest.TestCase):
    def test_grid_rises_and_ends_where_told(self):
        self.assertEqual(sweep.grid(8, 64, 2), [8, 16, 32, 64])
        fine = sweep.grid(1, 100, 1.1)
        self.assertEqual(fine, sorted(set(fine)))
        self.assertEqual((fine[0], fine[-1]), (1, 100))

    def search(self, least, first=1, last=1000):
        asked = []

        def evaluate(value):
            asked.append(value)
            return sweep.Point(value, 0.96 if value >= least else 0.9, float(value))

        best, points = sweep.narrowest(evaluate, first, last, 0.95)
        self.assertEqual(len(asked), len(set(asked)))
        self.assertEqual([p.value for p in points], sorted(asked))
        return best

    def test_bisection_finds_the_smallest_within_tolerance(self):
        for least in (1, 2, 3, 17, 31, 64, 500, 999, 1000):
            best = self.search(least)
            self.assertTrue(least <= best.value <= max(least + 1, least * 1.04), (least, best.value))

    def test_first_value_and_nothing(self):
        self.assertEqual(self.search(5, first=100).value, 100)
        self.assertIsNone(self.search(2000))

    def test_between_lies_between(self):
        self.assertEqual(sweep.between(4, 8), [5, 6, 7])
        self.assertEqual(sweep.between(4, 5), [])
        wide = sweep.between(10, 1000, 4)
        self.assertTrue(len(wide) == 4 and 10 < wide[0] and wide[-1] < 1000 and wide == sorted(wide), wide)

    def test_bracket(self):
        good = lambda x: x >= 7
        self.assertEqual(sweep.bracket([2, 9, 5, 7, 12], lambda x: x, good), (5, 7))
        self.assertEqual(sweep.bracket([9, 7], lambda x: x, good), (None, 7))
        self.assertEqual(sweep.bracket([1, 2], lambda x: x, good), (2, None))

    def test_cheapest(self):
        self.assertEqual(sweep.cheapest([5, 2, 8, 3], lambda x: x > 2, lambda x: x), 3)
        self.assertIsNone(sweep.cheapest([1], lambda x: False, lambda x: x))


class Ratios(unittest.TestCase):
    def test_best_of_those_that_reach(self):
        one = result("a", figure("faiss", 100.0), figure("faiss", 10.0, reached=False),
                     figure("faiss", 400.0, kind="Flat"), figure("ours", 20.0), figure("ours", 40.0, tuned=False))
        row = {r[:3]: r for r in ratios.ROWS}
        self.assertEqual(ratios.ratio(one, row["recall", True, None], "one"), 5.0)
        self.assertEqual(ratios.ratio(one, row["recall", False, None], "one"), 2.5)
        self.assertEqual(ratios.ratio(one, row["recall", True, "Flat"], "one"), 20.0)
        self.assertIsNone(ratios.ratio(one, row["error", True, None], "one"))
        self.assertIsNone(ratios.ratio(one, row["recall", True, None], "set_all"))

    def test_geometric_mean(self):
        self.assertAlmostEqual(ratios.geometric_mean([2.0, 8.0, None]), 4.0)
        self.assertIsNone(ratios.geometric_mean([None]))


class Table(unittest.TestCase):
    def test_numbers(self):
        shown = [table.number(x) for x in (None, 0, 0.01234, 9.876, 99.94, 12345.6)]
        self.assertEqual(shown, ["-", "0", "0.0123", "9.88", "99.9", "12,346"])

    def test_document(self):
        results = [result("a", figure("faiss", 100.0), figure("ours", 20.0)),
                   result("b", figure("faiss", 9.0, reached=False), synthetic=True)]
        page = table.document(results, OPTIONS, "2 processors")
        self.assertIn("| 5 | - | 5 (1 of 2) |", page)
        self.assertIn("0.951 (missed)", page)
        self.assertIn("**Synthetic**", page)
        self.assertNotIn("smoke run", page)
        for block in page.split("\n\n"):
            rows = [line.count("|") for line in block.splitlines() if line.startswith("|")]
            self.assertLessEqual(len(set(rows)), 1, block)

    def test_results_survive_being_kept(self):
        import dataclasses
        import json

        one = result("a", figure("ours", 20.0))
        self.assertEqual(restore(json.loads(json.dumps(dataclasses.asdict(one)))), one)


class Range(unittest.TestCase):
    META = {"sink": "128", "window": "512", "eval_from": "31744"}

    def test_indexed_and_limited(self):
        self.assertEqual(captures.indexed(self.META, 32768), (128, 31232, 31744, 32768))
        self.assertEqual(captures.indexed(self.META, 32768, 8192), (128, 6656, 7168, 8192))
        self.assertEqual(captures.indexed(self.META, 32768, 99999), captures.indexed(self.META, 32768))

    def test_nothing_left(self):
        with self.assertRaises(ValueError):
            captures.indexed(self.META, 32768, 1664)


if __name__ == "__main__":
    unittest.main()
