"""What people read after a run: HTML, text, JSON, a Chrome trace, JUnit XML and Graphviz dot.

All of them render one versioned value, `document.Document`, which `making` makes from a result or an exploration of the
simulator; nothing reads live objects. Only `making` imports the simulator, and only values of its levels 0 and 1, so
that a saved document is rendered without torch. `files` writes a folder of all forms.
"""
