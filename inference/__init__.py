"""Engines that continue token sequences, templates that turn messages into tokens, and dialects.

`engine.Engine` is the protocol, `transformers_engine.TransformersEngine` the default behind it;
`scripted.ScriptedEngine` and `recorded.RecordedEngine` are the shipped fakes. `chat.template_of`
makes templates, `tools` holds the formats in which policies call tools, `policy_dir.make_policy`
and `load_policy` write and read policy directories. `dialects` are the APIs that agents speak, as
pure functions.
"""
