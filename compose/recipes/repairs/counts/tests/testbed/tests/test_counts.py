import unittest

from counts import counts


class Counts(unittest.TestCase):
    def test_case(self):
        assert counts("To to") == {"to": 2}

    def test_words(self):
        assert counts("a b a") == {"a": 2, "b": 1}

    def test_nothing(self):
        assert counts("") == {}
