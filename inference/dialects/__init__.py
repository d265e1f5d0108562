"""The APIs that agents speak: a body becomes an ask, a reply becomes a body or a stream.

Each dialect is a module of pure functions and one `dialect.Dialect` that names them; `routes` says
which path speaks which. A corrected dialect changes no history: what stands in the log is neutral.
"""
