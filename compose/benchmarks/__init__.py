"""The benchmarks of `rollcall bench`: one file per idea, each figure beside its own ceiling."""
