"""The log as workers use it: its protocols, and two implementations, one of them on Kafka."""
