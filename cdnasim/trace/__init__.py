"""Kernel traces: per-wave instruction streams with loops kept, and the slabs that loads touch."""
