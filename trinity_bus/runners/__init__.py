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

``messages``          what explorer and runners say to each other, as frames on a socket
``frame_writer``      the frames of one turn of an event loop in one write
``request_rules``     the rules of what is said, seen from the explorer
``pool``              which attempt goes to which runner; what happens to it when the runner dies
``control``           what the explorer and its fork server say to each other
``fork_server``       the explorer's end of the fork server
``interpreter``       the Python that runners run in, which may be the user's own
``fork_server_main``  the fork server: imports everything once, then forks
``runner_main``       a runner: one event loop full of workflows
``service``           sockets and requests around the pure parts
``report``            the states of all runners, for people
``engine``            what is needed of an engine
``attempt_key``       what an attempt is known by
``errors``            what goes wrong
"""
