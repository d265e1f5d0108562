"""How often words occur."""


def counts(text):
    """Words of a text, and how often each occurs."""
    found = {}
    for word in text.split():
        found[word] = found.get(word, 0) + 1
    return found
