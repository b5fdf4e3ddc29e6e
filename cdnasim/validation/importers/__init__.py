"""Files of rocprofv3 and Nsight Compute as measured rows: readers, medians, the long-format CSV."""

from cdnasim.validation.importers.dispatch import Agent, Dispatch, Pass
from cdnasim.validation.importers.ncu import read_ncu
from cdnasim.validation.importers.rocprof import read_rocprof
from cdnasim.validation.importers.rows import to_measured, write_measured

__all__ = [
    "Agent",
    "Dispatch",
    "Pass",
    "read_ncu",
    "read_rocprof",
    "to_measured",
    "write_measured",
]
