"""The gateway's logic: which explorer answers an HTTP request, and how its response becomes an experience.

``wire``       what a gateway asks an explorer over HTTP, and is answered, as bytes
``fleet``      the explorers that can be asked, by their heartbeats (pure)
``routing``    which of them is asked: by cached prefix and load (pure)
``sessions``   what was said by whom, which reward it got, and what is to be contributed (pure)
``explorers``  asks them: another one where one fails, from the last token on where some were drawn
"""
