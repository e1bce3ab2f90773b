"""Reports of a run: HTML, text, JSON, a Chrome trace, JUnit XML and Graphviz dot.

`making` makes one versioned value, `document.Document`, from a result or an exploration. The forms render it, so a
saved document is rendered without torch. `report_folder` writes the forms into a folder.
"""
