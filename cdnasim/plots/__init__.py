"""Figures of simulated launches, and the HTML report that holds them."""
