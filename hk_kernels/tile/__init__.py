"""The tile language: types, layouts, tiles and the builder that a kernel definition talks to."""
