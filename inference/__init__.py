"""Engines that continue token sequences, and the templates that turn messages into tokens.

`engine.Engine` is the protocol, `transformers_engine.TransformersEngine` the default behind it;
`scripted.ScriptedEngine` and `recorded.RecordedEngine` are the shipped fakes. `chat.template_of`
makes templates, `policy_dir.make_policy` and `load_policy` write and read policy directories.
"""
