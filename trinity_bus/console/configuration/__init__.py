"""A mesh's settings, asked for question by question: what fields there are, what answers mean, what comes of them.

Pure, but for looking whether files are there that settings name. Nothing of a secret is read, shown or written.
"""
