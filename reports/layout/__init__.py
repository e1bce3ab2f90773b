"""The layout of a picture of a run: columns, lanes, spans and the wait-for graph, computed without drawing."""
