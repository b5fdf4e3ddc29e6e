"""The compute unit, instruction by instruction: kernel trace → clocks and stalls of a workgroup."""
