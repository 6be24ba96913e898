"""Gauges of the machine: what vitals say beside the times of steps.

`system` reads the kernel's files, `nvml` the GPU's driver in a child that may hang, `exporter` a
Prometheus page such as that of dcgm-exporter, `sampler` collects all three into windows.

Rule: a gauge that cannot be read is *blind*, named with the reason; it is never an error in
training, and never a number.
"""
