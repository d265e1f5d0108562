"""The history as tables: rows of trajectories, turns and scores, and their Parquet files."""
