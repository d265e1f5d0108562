"""Rules for when a batch is complete, one per file: from complete groups to a number to take."""
