"""The APIs that agents use: a body becomes an AgentRequest, a reply becomes a body or a stream.

Each dialect is a module of pure functions and one `dialect.Dialect` that names them; `routes` maps
paths to dialects. Records in the log do not depend on a dialect, so a corrected one needs no
migration.
"""
