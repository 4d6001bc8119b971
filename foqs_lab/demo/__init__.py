"""`foqs demo`: the standard library of the running Python, measured by a pool of worker processes through foqs.

Read in this order: `files` (the work, without a queue), `worker` (a consumer), `flow` (a client), `story` (from
start to end), `tally` (why nothing is counted twice), `crew` (the processes), `screen` and `report` (what one sees).

Nothing is imported here: a worker process starts without what only the command needs.
"""
