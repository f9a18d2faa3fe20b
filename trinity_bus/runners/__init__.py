"""Runners: the processes that run workflows, so that user code that blocks, leaks or crashes affects one of them only.

::

    explorer ── guard ── fork server ──fork──> runner 0    workflows, several at once on one event loop
       │                    ├──────────fork──> runner 1    no engine, no Kafka, no torch: whatever they need
       │                    └──────────fork──> ...         of the engine, they ask the explorer for
       ├── the engine's process
       └── a socket to the fork server, and one to each runner

    RolloutExecutor ── Runners (sockets, requests) ── Pool          which runner works on what (pure)
                              │                    └─ RequestRules  what may be said, for each runner (pure)
                          ForkServer (the process that forks them)
"""
