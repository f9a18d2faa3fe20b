"""What the console's pages say, apart from the service that sends them: pure, but for the files of templates.

::

    MeshState, index --pages--> what a page shows --render--> HTML
                                    '-- charts, tokens, text: pieces of it, each safe by itself

All that a model, a task or a workflow has written is hostile: see :mod:`trinity_bus.console.web.text`.
"""
