"""The forms of a document, one module each: `html`, `text`, `json_form`, `chrome_trace`, `junit` and `dot`."""
