"""Probes of a sweep: real work, measured; numbers, never verdicts.

What belongs here: one file per probe, each a function from a time budget (seconds) to a dict of
numbers with their units in the names. What is good enough is judged elsewhere
(`statemachine.sweep`). Nothing here needs torch, so that a probe starts in a tenth of a second and
measures the machine, not an import; `python -m worker.probes` runs one in a child that can be
killed.

Every measurement comes as its *best* sample and its *median*, with the coefficient of variation:
beside a training run the median says how busy the machine was, the best of many short samples how
fast it is. A machine that is slow all the time is slow in both.

Reading order: sampling (how anything is measured), compute, memory, wire (two ends), link,
collective.
"""
