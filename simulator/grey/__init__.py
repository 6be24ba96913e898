"""Fleets of which the truth is known, to measure a detector by.

`noise` resamples real recorded step times, `faults` says what each kind of fault does to a node,
`fleet` turns both into windows of vitals, `suite` is the labelled collection, `scoring` counts who
was taken for what, `rivals` holds other rules to the same windows.

Rule: nothing here knows the detector or its policy but `scoring`, and nothing in the detector knows
this. What a fault looks like is written down in `faults`, so that whoever tunes one to the other
has to do it in the open.
"""
