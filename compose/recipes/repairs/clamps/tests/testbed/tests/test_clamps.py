import unittest

from clamps import clamp


class Clamps(unittest.TestCase):
    def test_above(self):
        assert clamp(9, 0, 5) == 5

    def test_below(self):
        assert clamp(-9, 0, 5) == 0

    def test_within(self):
        assert clamp(3, 0, 5) == 3
