"""When what waits makes a batch, one rule to a file: complete groups in, how many are taken out."""
