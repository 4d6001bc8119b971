"""`foqs demo`: the standard library of the running Python, measured by a pool of worker processes through foqs.

Read in this order: `count` (the work, without a queue), `worker` (a consumer), `story` (a client, from start to end),
`crew` (the processes), `screen` (the output). Nothing is imported here: a worker process starts without the imports of
the command.
"""
