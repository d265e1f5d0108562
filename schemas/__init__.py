"""What two processes must agree on: records, topics, codec, ids, errors, wire settings."""
