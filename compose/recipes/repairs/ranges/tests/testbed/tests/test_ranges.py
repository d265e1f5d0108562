import unittest

from ranges import merged


class Ranges(unittest.TestCase):
    def test_touching(self):
        assert merged([(3, 5), (0, 3)]) == [(0, 5)]

    def test_overlap(self):
        assert merged([(0, 4), (3, 5)]) == [(0, 5)]

    def test_apart(self):
        assert merged([(4, 5), (0, 3)]) == [(0, 3), (4, 5)]
