"""The forms of a report: `html`, `text`, `json_form`, `chrome_trace`, `junit` and `dot` render a document."""
