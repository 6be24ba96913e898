"""What verbs found as one HTML file each: no script, no network, readable in light and dark.

`blocks` says what a page is made of, `drawing` where a chart's lines go, `telling` and `planning`
which blocks tell the result of which verb, `html` writes them down. Rules: an axis names its unit;
what has an interval shows it; what has none says why.
"""
