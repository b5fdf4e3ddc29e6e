"""Facts about instructions, as data with sources, and small models of what they cost."""
