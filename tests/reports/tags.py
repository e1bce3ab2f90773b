"""What a page of HTML is made of, as its parser tells."""

from __future__ import annotations

from html.parser import HTMLParser


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(page.decode())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in self.texts else ""

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside:
            self.texts[self._inside].append(data)
