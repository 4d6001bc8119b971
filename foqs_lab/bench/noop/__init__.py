"""Programs with a task that does nothing, one for each queue: its worker imports it, and as a main module it stores
the backlog. A rival's program runs with the packages that script/rivals has got, and imports nothing of foqs."""
