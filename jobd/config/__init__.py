"""The configuration: a tree of frozen Structs, read from defaults, file, environment and flags.

model           every option, with its type, default and meaning; rules between options
options         the tree as a flat list of options
load            reads and merges the four sources
model_rules     rules of the models of the OpenAI interface
schedule_rules  rules of schedules
show            prints the configuration without secrets, and what a reload changes
task_settings   lease and heartbeat times of one task
"""
