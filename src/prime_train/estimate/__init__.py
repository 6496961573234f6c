"""Estimates what a run needs and costs: memory, time and money, as named terms and intervals. Pure.

Every term counts what a program really keeps, sends or computes, and names a formula and a source. The few numbers that
cannot be counted are in `registry/memory.toml` and `registry/throughput_fitted.toml`, which `bench/fit_*.py` write from
measured rows. A row becomes an ordinary RunSpec and runs through the code of the command. docs/estimate.md and
docs/throughput.md explain terms, intervals, verdict and advice, with the errors on models that the fit had not seen.
Memory outside torch's allocator is not part of the interval, but counts for the verdict. Each piece of advice is tried:
the change is applied to the run and the estimate is repeated. A calibration by another model, program or method is
refused, because a wrong calibration is worse than none.
"""
