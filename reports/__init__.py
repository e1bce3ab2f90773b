"""What people read after a run: HTML, text, JSON, a Chrome trace, JUnit XML and Graphviz dot.

All of them render one versioned value, `document.Document`, which `making` makes from a result or an exploration of the
simulator; nothing reads live objects. Only `making` reads results; the rest knows no more of the simulator than its
plain values (kinds of events, verdicts, who), so that a saved document is rendered without torch. `files` writes a
folder of forms.
"""
