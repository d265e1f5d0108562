"""The benchmarks of `rollcall bench`: one file per topic, each figure with its own ceiling."""
