"""How much entropy is worth to whom, one rule to a file: rewards of a batch in, weights out."""
