"""Reports of a run: HTML, text, JSON, a Chrome trace, JUnit XML and Graphviz dot.

Every form renders one versioned value, `document.Document`. `making` makes it from a result or an exploration. Only
`making` reads results. The other modules use plain values of the simulator only (kinds of events, verdicts, ranks), so
a saved document can be rendered without torch. `files` writes the forms into a folder.
"""
