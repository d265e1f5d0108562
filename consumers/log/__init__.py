"""The log as workers see it: its protocols, and the two that fulfil them, one of them Kafka."""
