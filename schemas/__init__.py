"""The contract between processes: records, topics, codec, ids, errors, wire settings."""
