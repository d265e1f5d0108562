"""Policy versions: which are in use, their results, and the files that hold them."""
