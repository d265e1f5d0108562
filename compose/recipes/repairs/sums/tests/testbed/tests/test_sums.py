import unittest

from sums import total


class Sums(unittest.TestCase):
    def test_all(self):
        assert total([1, 2, 3]) == 6

    def test_none(self):
        assert total([]) == 0
