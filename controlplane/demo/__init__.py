"""The demo: a real run on a local fleet that loses a machine, finds a grey one, and does not stop.

What belongs here: the plot, what it proves, and how it is shown. Everything it starts is a real
process of `controlplane.localfleet`; everything it claims is read from the log or measured.
Reading order: `options`, `plot`, `proof`; `chronicle` is what they look at.
"""
