"""The content of the console's pages, apart from the service that sends them. Pure, except that it reads templates.

::

    MeshState, index --pages--> what a page shows --render--> HTML
                                    '-- charts, tokens, text: pieces of it, each safe by itself

All that a model, a task or a workflow has written is hostile: see :mod:`trinity_bus.console.web.render`.
"""
