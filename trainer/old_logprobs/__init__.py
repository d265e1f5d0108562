"""Rules for `old`, the trainer's own log-probability at sampling time, one per file."""
