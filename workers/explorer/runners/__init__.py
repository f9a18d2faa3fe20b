"""Runners: the processes that run workflows, so that user code that blocks, leaks or dies takes only one of them along.

::

    explorer ── guard ── nursery ──fork──> runner 0    workflows, several at once on one event loop
       │                    ├──────fork──> runner 1    no engine, no Kafka, no torch: whatever they need
       │                    └──────fork──> ...         of the engine, they ask the explorer for
       ├── the engine's process
       └── a socket to the nursery, and one to each runner

    Attempts ── Runners (sockets, requests) ── Pool          which runner works on what (pure)
                       │                    └─ Conversation  what may be said, for each runner (pure)
                    Nursery (the process that forks them)

``messages``      what explorer and runners say to each other, as frames on a socket
``conversation``  the rules of it, seen from the explorer
``pool``          which attempt goes to which runner; what happens to it when the runner dies
``nursery``       the explorer's end of the nursery
``nursery_main``  the nursery: imports everything once, then forks
``runner_main``   a runner: one event loop full of workflows
``service``       sockets and requests around the pure parts
``report``        the states of all runners, for people
``errors``        what goes wrong
"""
